"""A caller who leaves frees his place in the engine; where that cannot be seen, a deadline does.

The demo's engine computes at most 16 answers in a step. With 16 long answers under way the next
one waits until they end, which takes minutes: an answer within seconds proves that they did.
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

from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import expect_error, grpc_request, sampling

GONE = "[vllm] Successfully cancelled the request"
LONG = sampling(max_tokens=900, min_tokens=900, ignore_eos=True)
#: A cancel is seen within one poll of the door and acts within one step of the engine.
BOUND_S = 5.0


def long_request(server: Server, model: str, **fields: Any) -> Any:
    return grpc_request(
        model,
        {
            "text_input": "Count:",
            "credential": server.keys["admin"],
            "sampling_parameters": LONG,
            **fields,
        },
    )


def is_served(client: Client) -> None:
    """The engine has a free place now."""
    began = time.monotonic()
    assert client.infer_grpc(text_input="Hi", parameters={"max_tokens": 1}).served == "base"
    assert time.monotonic() - began < BOUND_S


@contextlib.contextmanager
def freed(server: Server, count: int = 1) -> Iterator[None]:
    """Within the bound after the block, ``count`` requests have left the engine."""
    mark = server.log_mark()
    yield
    server.wait_for_log(GONE, mark, count, BOUND_S)
    is_served(server.client)


@pytest.mark.parametrize("count", [1, 16])
def test_grpc_streams(server: Server, client: Client, count: int) -> None:
    def start() -> Any:
        request = long_request(server, "lora_stream", stream=True)
        call = client.stub.ModelStreamInfer(iter([request]), timeout=60)
        first = next(call)
        assert not first.error_message, first.error_message
        return call

    with freed(server, count):
        with ThreadPoolExecutor(count) as pool:
            calls = list(pool.map(lambda _: start(), range(count)))
        for call in calls:
            call.cancel()


def test_a_grpc_stream_before_its_only_response(server: Server, client: Client) -> None:
    with freed(server):
        call = client.stub.ModelStreamInfer(iter([long_request(server, "lora_stream")]))
        time.sleep(0.5)
        call.cancel()


def test_an_http_stream(server: Server, client: Client) -> None:
    body = {
        "text_input": "Count:",
        "stream": True,
        "credential": server.keys["admin"],
        "sampling_parameters": LONG,
    }
    path = "/v2/models/lora_stream/generate_stream"
    with freed(server), client.http.stream("POST", path, json=body) as response:
        assert next(response.iter_text()).startswith("data: ")


@pytest.mark.parametrize("count", [1, 16])
def test_unary_grpc(server: Server, client: Client, count: int) -> None:
    with freed(server, count):
        request = long_request(server, "lora_infer")
        calls = [client.stub.ModelInfer.future(request) for _ in range(count)]
        time.sleep(0.5)
        for call in calls:
            assert call.cancel()


def test_a_grpc_clients_own_timeout(server: Server, client: Client) -> None:
    with freed(server), pytest.raises(grpc.RpcError) as caught:
        client.stub.ModelInfer(long_request(server, "lora_infer"), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def deadline(client: Client, way: str) -> None:
    fields: dict[str, Any] = {"text_input": "Count:", "sampling_parameters": LONG}
    given = {"timeout_ms": 500}
    if way == "generate":
        client.generate("lora_generate", parameters=given, **fields)
    elif way == "ensemble stream":
        client.stream_grpc("lora_generate", parameters=given, **fields)
    elif way == "stream":
        client.stream_grpc("lora_stream", parameters=given, **fields)
    elif way == "http":
        client.infer_http(parameters=given, **fields)
    elif way == "text":
        client.infer_http(parameters={"timeout_ms": "500"}, **fields)
    else:
        client.infer_grpc(timeout_us=500_000, **fields)


@pytest.mark.parametrize("way", ["generate", "ensemble stream", "stream", "http", "text", "triton"])
def test_a_deadline_ends_a_request(client: Client, way: str) -> None:
    began = time.monotonic()
    with expect_error("deadline_exceeded"):
        deadline(client, way)
    assert 0.4 < time.monotonic() - began < 0.5 + BOUND_S
    is_served(client)


def test_the_deadline_bounds_what_a_lost_http_client_costs(server: Server, client: Client) -> None:
    """Triton never sees an ``/infer`` client leave."""
    body, header = client.infer_body(
        {
            "text_input": "Count:",
            "credential": server.keys["admin"],
            "sampling_parameters": LONG,
        },
        {"timeout_ms": 2000},
    )
    head = (
        "POST /v2/models/lora_infer/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {header}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sockets = []
    for _ in range(16):
        sock = socket.create_connection(("127.0.0.1", server.ports[0]))
        sock.sendall(head.encode() + body)
        sockets.append(sock)
    time.sleep(0.3)
    for sock in sockets:
        sock.close()
    began = time.monotonic()
    assert client.infer_grpc(text_input="Hi", parameters={"max_tokens": 1}).served == "base"
    assert time.monotonic() - began < 2 + BOUND_S


def test_twenty_cancels_at_random_moments(server: Server, client: Client) -> None:
    """Early, late, before the gate has decided: nothing is left behind."""
    dice = random.Random(20)
    outcomes: list[str] = []

    def one(number: int, wait_s: float, model: str) -> None:
        request = long_request(server, model, lora_id=f"mark_w000{1 + number % 8}_v1")
        if model == "lora_infer":
            call = client.stub.ModelInfer.future(request)
        else:
            call = client.stub.ModelStreamInfer(iter([request]))
        time.sleep(wait_s)
        call.cancel()
        try:
            list(call) if model == "lora_stream" else call.result()
        except (grpc.RpcError, grpc.FutureCancelledError):
            outcomes.append("cancelled")

    threads = [
        threading.Thread(
            target=one, args=(n, dice.uniform(0, 1), dice.choice(["lora_infer", "lora_stream"]))
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes == ["cancelled"] * 20
    with ThreadPoolExecutor(16) as pool:  # every place in the engine is free again
        began = time.monotonic()
        for done in [pool.submit(is_served, client) for _ in range(16)]:
            done.result()
    assert time.monotonic() - began < BOUND_S
