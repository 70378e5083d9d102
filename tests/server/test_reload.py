"""The engine model unloaded and loaded again under load: nothing is lost, nothing stays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from tests.server import second
from tests.server.harness import START_LIMIT_S, Server
from tests.server.shapes import Refused, expect_error, grpc_request, sampling
from tests.server.test_admission import is_empty, until
from tests.server.test_signals import samples, value, wait

OK = {"department": "ops", "outcome": "ok"}
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


@pytest.fixture(scope="module")
def other(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("reload")
    second.copy_repository(folder / "models")
    with second.running(demo, folder / "state", folder / "models", *EXPLICIT) as (server, _):
        yield server


def control(server: Server, act: str) -> None:
    headers = {"admin-key": server.admin_key}
    answer = server.client.http.post(
        f"/v2/repository/models/vllm_lora/{act}", headers=headers, timeout=START_LIMIT_S
    )
    assert answer.status_code == 200, answer.text


def stream(server: Server, tokens: int, model: str = "lora_stream") -> Any:
    fields = {
        "text_input": "Count:",
        "credential": server.keys["admin"],
        "stream": True,
        "sampling_parameters": sampling(max_tokens=tokens, min_tokens=tokens, ignore_eos=True),
    }
    return server.client.stub.ModelStreamInfer(iter([grpc_request(model, fields)]), timeout=120)


def test_unload_and_load_again(other: Server) -> None:
    ask_one(other)
    shown = wait(other, lambda now: value(now, "lora_requests_total", **OK) == 1)
    streams = [stream(other, 60) for _ in range(40)]
    until(other, "lora_requests_in_engine", 16)
    control(other, "unload")
    with expect_error("unavailable"):
        other.client.infer_grpc(text_input="Hi", parameters={"max_tokens": 1})
    for one in streams:
        try:
            ends = [message.error_message for message in one]
        except grpc.RpcError as error:
            pytest.fail(f"a stream was torn: {error}")
        # Answered to the end, or told that the model goes.
        assert ends[-1] == "" or ends[-1].split(":")[0] in {"cancelled", "unavailable"}
    control(other, "load")
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            reply = other.client.infer_grpc(text_input="Hi", parameters={"max_tokens": 1})
            break
        except Refused as refused:
            assert refused.code == "unavailable" and time.monotonic() < deadline, refused
            time.sleep(0.2)
    assert reply.served == "base"
    is_empty(other)
    # Every series is there once, and goes on counting.
    before = samples(other)
    assert shown.keys() <= before.keys()
    ask_one(other)
    counted = value(before, "lora_requests_total", **OK) + 1
    wait(other, lambda now: value(now, "lora_requests_total", **OK) == counted)
    text = other.metrics_text()
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if line[:1] not in ("", "#")]
    assert len(series) == len(set(series))


def ask_one(server: Server) -> None:
    server.client.infer_grpc(text_input="Hi", parameters={"max_tokens": 1})
