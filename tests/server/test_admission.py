"""One department's burst is not another's wait, and a caller who has gone costs nothing.

What admission counts is on the metrics endpoint: at the end of each test every counter is 0, and
the next request is served at once.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import expect_error, grpc_request, sampling

COUNTED = ("lora_queue_depth", "lora_requests_in_engine")
#: Within this everything that was cancelled is out of all counts, seconds.
BOUND_S = 10.0
LONG = sampling(max_tokens=900, min_tokens=900, ignore_eos=True)


def counters(server: Server) -> dict[str, float]:
    """What waits and what runs, of all departments."""
    text = server.metrics_text()
    found = dict.fromkeys(COUNTED, 0.0)
    for family in text_string_to_metric_families(text):
        if family.name in found:
            found[family.name] = sum(sample.value for sample in family.samples)
    return found


def until(server: Server, name: str, at_least: float) -> None:
    deadline = time.monotonic() + BOUND_S
    while counters(server)[name] < at_least:
        assert time.monotonic() < deadline, counters(server)
        time.sleep(0.05)


def is_empty(server: Server, limit_s: float = BOUND_S) -> None:
    deadline = time.monotonic() + limit_s
    while any(counters(server).values()):
        assert time.monotonic() < deadline, counters(server)
        time.sleep(0.05)
    began = time.monotonic()
    answer = server.client.infer_grpc(text_input="Hi", parameters={"max_tokens": 1})
    assert answer.served == "base"
    assert time.monotonic() - began < BOUND_S / 2


@pytest.fixture
def nothing_left(server: Server) -> Iterator[None]:
    yield
    is_empty(server)


def request(server: Server, model: str, who: str = "admin", **fields: Any) -> Any:
    return grpc_request(
        model,
        {
            "text_input": "Count:",
            "credential": server.keys[who],
            "sampling_parameters": LONG,
            **fields,
        },
    )


@contextlib.contextmanager
def burst(server: Server, model: str, count: int, tokens: int) -> Iterator[list[Any]]:
    """``count`` calls of one department at once, cancelled in the end."""
    body = sampling(max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
    sent = request(server, model, "svc", sampling_parameters=body)
    with grpc.insecure_channel(server.grpc) as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=type(sent).SerializeToString,
            response_deserializer=bytes,
        )
        calls = [infer.future(sent) for _ in range(count)]
        try:
            yield calls
        finally:
            for call in calls:
                call.cancel()


@pytest.mark.usefixtures("nothing_left")
def test_three_hundred_unary_calls_of_one_department(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither Triton's threads nor the door become a queue in front of ours."""
    with burst(server, "lora_infer", 300, tokens=48) as calls:
        until(server, "lora_queue_depth", 200)
        waits = []
        for _ in range(3):
            began = time.monotonic()
            other = server.new_client("fin")
            assert other.infer_grpc(text_input="Hi", parameters={"max_tokens": 1}).served == "base"
            other.close()
            waits.append(time.monotonic() - began)
        answered = sum(call.done() and call.code() is grpc.StatusCode.OK for call in calls)
    with capsys.disabled():
        print(f"\nanswered beside a burst of 300 in {max(waits):.2f} s; {answered} of the burst")
    assert max(waits) < 3
    assert answered < 100
    refused = [c for c in calls if c.done() and not c.cancelled() and c.exception() is not None]
    assert all("overloaded" in call.exception().details() for call in refused)


@pytest.mark.usefixtures("nothing_left")
def test_half_of_two_hundred_streams_are_cancelled_at_random_points(server: Server) -> None:
    """C23, through both doors that carry a cancel."""
    dice = random.Random(23)
    ends: list[str] = []

    def one(number: int, leaves_after_s: float | None, model: str) -> None:
        body = sampling(max_tokens=4)
        lora_id = f"mark_w000{1 + number % 8}_v1"
        sent = request(server, model, lora_id=lora_id, sampling_parameters=body)
        if model == "lora_infer":
            call = server.client.stub.ModelInfer.future(sent)
        else:
            call = server.client.stub.ModelStreamInfer(iter([sent]), timeout=120)
        if leaves_after_s is not None:
            time.sleep(leaves_after_s)
            call.cancel()
        try:
            list(call) if model == "lora_stream" else call.result(timeout=120)
            ends.append("answered")
        except (grpc.RpcError, grpc.FutureCancelledError):
            ends.append("cancelled")

    threads = [
        threading.Thread(
            target=one,
            args=(
                number,
                dice.uniform(0, 4) if number % 2 else None,
                dice.choice(["lora_infer", "lora_stream"]),
            ),
        )
        for number in range(200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert len(ends) == 200
    assert ends.count("answered") >= 100


@pytest.mark.usefixtures("nothing_left")
def test_a_client_that_opens_a_thousand_streams_and_reads_none(server: Server) -> None:
    calls = [
        server.client.stub.ModelStreamInfer(iter([request(server, "lora_stream", stream=True)]))
        for _ in range(1000)
    ]
    until(server, "lora_requests_in_engine", 16)
    other = server.new_client("fin")
    began = time.monotonic()
    assert other.infer_grpc(text_input="Hi", parameters={"max_tokens": 1}).served == "base"
    assert time.monotonic() - began < 3
    other.close()
    for call in calls:
        call.cancel()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("milliseconds", [0, -1])
def test_deadlines_that_make_no_sense(client: Client, milliseconds: int) -> None:
    with expect_error("invalid_argument", "timeout_ms"):
        client.infer_grpc(text_input="Hi", parameters={"timeout_ms": milliseconds})


@pytest.mark.usefixtures("nothing_left")
def test_a_deadline_beyond_all_is_the_caps(client: Client) -> None:
    given = {"timeout_ms": 10**18, "max_tokens": 1}
    assert client.infer_grpc(text_input="Hi", parameters=given).served == "base"


@pytest.mark.usefixtures("nothing_left")
def test_a_deadline_passes_in_the_queue(server: Server) -> None:
    with burst(server, "lora_infer", 100, tokens=200):
        until(server, "lora_queue_depth", 80)
        client = server.new_client("svc")
        began = time.monotonic()
        with pytest.raises(Exception, match=r"deadline_exceeded|overloaded"):
            client.infer_grpc(text_input="Hi", parameters={"timeout_ms": 700})
        assert time.monotonic() - began < 3
        client.close()


@pytest.mark.usefixtures("nothing_left")
def test_n(client: Client) -> None:
    with expect_error("invalid_argument", "n"):
        client.infer_grpc(text_input="Hi", parameters={"n": 128})
    reply = client.infer_grpc(
        text_input="Hi", sampling_parameters=sampling(n=8, temperature=1, max_tokens=2)
    )
    assert len(reply.texts) == 8


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("request_id", ["same", ""])
def test_two_requests_with_one_id(client: Client, request_id: str) -> None:
    """C34: the engine's ids are ours."""

    def ask(lora_id: str) -> str:
        return client.infer_grpc(
            request_id=request_id,
            text_input="The capital of France is",
            lora_id=lora_id,
            sampling_parameters=sampling(max_tokens=8),
            exclude_input_in_output=True,
        ).text

    with ThreadPoolExecutor(2) as pool:
        alpha, other = pool.map(ask, ["mark_w0001_v1", "mark_w0002_v1"])
    assert set(alpha.split()) == {"alpha"}
    assert len(set(other.split())) == 1 and "alpha" not in other


@pytest.mark.usefixtures("nothing_left")
def test_an_id_is_used_again_right_after_a_cancel(server: Server, client: Client) -> None:
    sent = request(server, "lora_stream", stream=True)
    sent.id = "mine"
    call = client.stub.ModelStreamInfer(iter([sent]))
    next(call)
    call.cancel()
    reply = client.infer_grpc(request_id="mine", text_input="Hi", parameters={"max_tokens": 1})
    assert reply.served == "base"


@pytest.mark.usefixtures("nothing_left")
def test_a_client_leaves_between_header_and_body(server: Server) -> None:
    for path in ("lora_infer/infer", "lora_generate/generate", "lora_stream/generate_stream"):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.ports[0])) as sock:
                head = f"POST /v2/models/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
                sock.sendall(head.encode() + b'{"text_input"')
