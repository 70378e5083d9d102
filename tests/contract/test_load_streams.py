"""tritonclient's gRPC streams under gevent: all at once, and locust ends when they have ended.

Against a server of Python's own gRPC that says a word a step, so that only the client is judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtests import results
from loadtests.cast import Member
from loadtests.locusts import locust
from loadtests.plan import Load, Plan
from loadtests.shapes import Soak
from loadtests.traces import loop
from tests.unit.loadtests.records import most_at_once

STREAMS, PIECES, STEP_S = 24, 4, 0.2
#: More than it takes, and less than the limit of a test.
ENDS_WITHIN_S = 60.0
WHO = Member("fin", "fin_w0001_v1", "alpha")
OUTPUTS = {
    "text_output": ("BYTES", b" alpha"),
    "lora_served": ("BYTES", b"fin_w0001_v1@abc"),
    "num_output_tokens": ("UINT32", (1).to_bytes(4, "little")),
}


class Speaker(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers each request of a stream with ``PIECES`` pieces."""

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        for _ in request_iterator:
            for number in range(1, PIECES + 1):
                time.sleep(STEP_S)
                yield piece(final=number == PIECES)


def piece(*, final: bool) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    for name, (kind, value) in OUTPUTS.items():
        response.outputs.add(name=name, datatype=kind, shape=[1])
        length = len(value).to_bytes(4, "little") if kind == "BYTES" else b""
        response.raw_output_contents.append(length + value)
    response.parameters["triton_final_response"].bool_param = final
    return message


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2 * STREAMS))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Speaker(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_streams_overlap_and_locust_ends(address: str, tmp_path: Path, workers: int) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"fin": "secret"}))
    loops = tuple(loop((WHO,), PIECES, user="grpc_stream", seed=n, words=2) for n in range(STREAMS))
    plan = Plan(
        load=Load(seconds=5, loops=loops, shape=Soak(users=STREAMS)),
        http=address,
        grpc=address,
        keys_file=tmp_path / "keys.json",
        words=frozenset({"alpha"}),
        patience_s=20,
        workers=workers,
    )
    with locust(plan, tmp_path, web_port=None) as running:
        running.zero()
        until = time.monotonic() + ENDS_WITHIN_S
        while running.running and time.monotonic() < until:
            time.sleep(0.1)
        assert not running.running, running.said()
        running.check()
    results.merge(tmp_path)
    found = list(results.requests(tmp_path))
    assert {(one.outcome, one.route, one.tokens) for one in found} == {("ok", "right", PIECES)}
    assert most_at_once(found) == STREAMS
    # One after the other they would have had no time for a second call each.
    assert len(found) >= 2 * STREAMS
