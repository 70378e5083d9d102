"""A real nginx in front of two real servers. The last test kills one of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import pytest

from tests.gateway.conftest import SLOTS, House, one_group
from tests.gateway.front import Front
from tests.server import test_signals
from tests.server.client import sse_events
from tests.server.harness import Server
from tests.server.shapes import expect_error, grpc_request, sampling
from tools.serving.process import session_members

ODD, EVEN = "mark_w0001_v1", "mark_w0002_v1"
LONG = sampling(max_tokens=600, min_tokens=600, ignore_eos=True)


def requests_of(server: Server) -> float:
    """How many requests the server's engine has answered."""
    found = test_signals.samples(server)
    return sum(v for (name, _), v in found.items() if name == "lora_requests_total")


def named(lora_id: str) -> dict[str, str]:
    return {"x-lora-id": lora_id}


@pytest.mark.parametrize(("lora_id", "at"), [(ODD, 0), (EVEN, 1)])
def test_a_group_has_its_server(house: House, by_group: Front, lora_id: str, at: int) -> None:
    """By every way in, over TLS; the adapter named by the header alone where servers see it."""
    client = by_group.client(house.key)
    before = [requests_of(server) for server in house.servers]
    fields = {"text_input": "Hi", "sampling_parameters": sampling(max_tokens=1)}
    fields["exclude_input_in_output"] = True
    word = f" {house.words[lora_id]}"
    headers = named(lora_id)
    assert client.infer_http(headers=headers, **fields).text == word
    assert client.infer_grpc(headers=headers, **fields).text == word
    stream = client.stream_grpc("lora_stream", headers=headers, **fields)
    assert (stream.text, stream.finals) == (word, 1)
    # Triton forwards no header of /generate: there the body has to name the adapter as well.
    client.http.headers.update(headers)
    assert client.generate("lora_generate", lora_id=lora_id, **fields).text == word
    assert client.generate_stream("lora_stream", lora_id=lora_id, **fields).text == word
    client.close()
    expected = list(before)
    expected[at] += 5

    def counted() -> bool:
        return [requests_of(server) for server in house.servers] == expected

    deadline = time.monotonic() + 10
    while not counted() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert counted()


def test_header_and_lora_id_must_agree(house: House, by_group: Front) -> None:
    client = by_group.client(house.key)
    fields = {"text_input": "Hi", "lora_id": ODD, "headers": named(EVEN)}
    for call in (client.infer_http, client.infer_grpc):
        with expect_error("invalid_argument", "lora_id"):
            call(**fields)


@pytest.mark.parametrize("lora_id", ["", "nobody_has_v1"])
def test_without_a_group_nobody_is_asked(house: House, by_group: Front, lora_id: str) -> None:
    client, headers = by_group.client(house.key), named(lora_id) if lora_id else {}
    code = "not_found" if lora_id else "invalid_argument"
    with expect_error(code):
        client.infer_http(text_input="Hi", headers=headers)
    with expect_error(code) as caught:
        client.infer_grpc(text_input="Hi", headers=headers)
    assert caught.value.status == code.upper()


@pytest.mark.parametrize(
    "path",
    [
        "v2/models/lora_gate/infer",
        "v2/models/vllm_lora/generate",
        "v2/models/lora_admin/infer",
        "v2/models/lora_infer/infer/../../lora_gate/infer",
        "v2/models/lora_infer%2f..%2flora_gate/infer",
        "v2/repository/index",
        "v2/repository/models/vllm_lora/unload",
        "v2/systemsharedmemory/status",
        "v2/logging",
        "v2/trace/setting",
        "metrics",
        "",
    ],
)
def test_nothing_else_is_open(house: House, by_group: Front, path: str) -> None:
    host, port = by_group.http.split(":")
    context = ssl.create_default_context(cafile=str(by_group.folder / "gateway.pem"))
    # By hand: a client would tidy the path up.
    for method in ("GET", "POST"):
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            head = f"{method} /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            sock.sendall(f"{head}x-lora-id: {ODD}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            answer = b""
            while received := sock.recv(4096):
                answer += received
        assert answer.startswith(b"HTTP/1.1 404"), answer
        assert b"not_found: there is no such call." in answer


def test_methods_of_the_operators_are_closed(by_group: Front) -> None:
    client = by_group.client()
    for method in ("RepositoryIndex", "ModelConfig", "SystemSharedMemoryStatus", "LogSettings"):
        call = client.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=10, metadata=list(named(ODD).items()))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_model_behind_the_gate_takes_no_call_without_a_ticket(
    house: House, by_group: Front
) -> None:
    """nginx cannot see which model a message of gRPC is for; the engine can see who has decided."""
    fields = {"prompt": "Hi", "request": "{}", "ticket": "a.b"}
    request = grpc_request("vllm_lora", fields, {}, "1")
    found = by_group.client().streams_grpc([request], named(ODD))["1"]
    assert found.error is not None and found.error.code == "unauthenticated"


def test_health_and_readiness_can_be_asked(by_group: Front) -> None:
    client = by_group.client()
    assert client.http.get("/v2/health/ready").status_code == 200
    path = "/v2/models/lora_infer/ready"
    assert client.http.get(path, headers=named(ODD)).status_code == 200


def test_a_header_that_servers_would_take_for_a_parameter_is_gone(
    house: House, by_group: Front
) -> None:
    """Triton forwards every header in whose name it finds one of ours, and the gate refuses it."""
    headers = {**named(ODD), "x-authorization-role": "admin"}
    fields = {"text_input": "Hi", "sampling_parameters": sampling(max_tokens=1)}
    reply = by_group.client(house.key).infer_http(headers=headers, **fields)
    assert reply.text == f"Hi {house.words[ODD]}"


def test_a_slow_client_holds_nobody(house: House, by_group: Front) -> None:
    """Some send a byte and wait, as many as the engine has seats read nothing of their answer."""
    context = ssl.create_default_context(cafile=str(by_group.folder / "gateway.pem"))
    host, port = by_group.http.split(":")
    body = (
        f'{{"text_input":"Hi","stream":true,"max_tokens":20,"ignore_eos":true,"lora_id":"{ODD}",'
        f'"credential":"{house.key}"}}'
    )
    head = "POST /v2/models/lora_stream/generate_stream HTTP/1.1\r\nHost: localhost\r\n"
    head += f"x-lora-id: {ODD}\r\nContent-Type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        for sent in [""] * 20 + [body] * 4:
            plain = stack.enter_context(socket.create_connection((host, int(port))))
            sock = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{sent or body[:1]}".encode())
        reply = by_group.client(house.key).infer_grpc(
            text_input="Hi", headers=named(ODD), sampling_parameters=sampling(max_tokens=1)
        )
    assert reply.text == f"Hi {house.words[ODD]}"


def found_in_place(house: House, gateway: Front) -> float:
    """Share of requests whose adapter was in a slot when they came; the same adapters each time."""
    draw = random.Random(4)
    client = gateway.client(house.key)

    def ask(lora_id: str) -> None:
        fields = {"text_input": "Hi", "sampling_parameters": sampling(max_tokens=1)}
        assert client.infer_grpc(headers=named(lora_id), **fields).served.startswith(lora_id)

    def activations() -> float:
        time.sleep(1.2)  # counted once a second
        every = [test_signals.samples(server) for server in house.servers]
        return sum(test_signals.value(found, "lora_activations_total") for found in every)

    for lora_id in house.words:
        ask(lora_id)
    before, count = activations(), 60
    for _ in range(count):
        ask(draw.choice(list(house.words)))
    client.close()
    return 1 - (activations() - before) / count


def test_adapters_stay_where_they_are(house: House, tmp_path: Path) -> None:
    """Against round robin, which finds one in place by chance: slots / adapters."""
    assert len(house.words) == 3 * SLOTS
    shares = {}
    for balance in ("round_robin", "lora_id"):
        with one_group(house, tmp_path / balance, balance) as gateway:
            shares[balance] = found_in_place(house, gateway)
    print(f"found in place: {shares}")
    assert shares["lora_id"] > shares["round_robin"], shares


def test_a_server_dies_in_mid_stream(house: House, tmp_path: Path) -> None:
    """Its streams end in an error and are not begun anew; the next request goes to the other."""
    with one_group(house, tmp_path / "dying", "lora_id") as gateway:
        client = gateway.client(house.key)
        fields = {"text_input": "Hi", "sampling_parameters": sampling(max_tokens=1)}
        client.infer_http(headers=named(ODD), **fields)
        address = gateway.log()[-1]["server"]
        (at,) = [n for n, server in enumerate(house.servers) if server.http == address]
        other = house.servers[1 - at]
        before = requests_of(other)

        body = {"text_input": "Hi", "lora_id": ODD, "credential": house.key, "stream": True}
        body["sampling_parameters"] = LONG
        request = grpc_request("lora_stream", body, {}, "1")
        call = client.stub.ModelStreamInfer(iter([request]), metadata=list(named(ODD).items()))
        assert not next(call).error_message
        path = "/v2/models/lora_stream/generate_stream"
        with client.http.stream("POST", path, json=body, headers=named(ODD)) as response:
            events = sse_events(response.iter_text())
            assert "error" not in next(events)
            for pid in session_members(house.processes[at].pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert _ends_badly(events)
        with pytest.raises(grpc.RpcError) as caught:
            for message in call:
                assert not message.error_message
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}
        assert requests_of(other) == before

        began = time.monotonic()
        for ask in (client.infer_http, client.infer_grpc):
            assert ask(headers=named(ODD), **fields).text == f"Hi {house.words[ODD]}"
        print(f"two answers by the other server within {time.monotonic() - began:.2f} s")
        client.close()


def _ends_badly(events: Any) -> bool:
    """Whether a stream of events breaks off or says an error, and does not just end."""
    try:
        return any("error" in event for event in events)
    except httpx.RemoteProtocolError:
        return True
