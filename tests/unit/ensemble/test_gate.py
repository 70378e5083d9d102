from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ensemble.gate import Gate
from python_backend.errors import (
    AdapterFailed,
    InvalidArgument,
    NotFound,
    ServingError,
    Unauthenticated,
    Unavailable,
)
from python_backend.messages import Decision, EngineRequest, RawRequest
from python_backend.ticket import (
    CANCEL_PROMPT,
    CANCEL_REQUEST,
    ENGINE_AUDIENCE,
    Ticket,
    verify,
)

KEY = bytes(range(32))
BOOT_ID = "b" * 32
NOW_NS = 1_000_000_000_000
FIN = RawRequest(credential=b"fin-key", text_input=b"Hello", lora_id=b"fin_risk_v1")


def decide(gate: Gate, raw: RawRequest) -> Decision:
    return gate.decide(raw, now_s=100.0, now_ns=NOW_NS)


def refused(gate: Gate, **changes: Any) -> ServingError:
    with pytest.raises(ServingError) as error:
        decide(gate, dataclasses.replace(FIN, **changes))
    return error.value


def generate_ticket(decision: Decision, now_ns: int = NOW_NS) -> Ticket:
    return verify(
        decision.ticket,
        KEY,
        boot_id=BOOT_ID,
        audience=ENGINE_AUDIENCE,
        operation="generate",
        prompt=decision.prompt.encode(),
        request=decision.request.encode(),
        now_ns=now_ns,
    )


def test_a_decision_whole(gate: Gate) -> None:
    raw = dataclasses.replace(
        FIN,
        sampling_parameters=b'{"temperature": "0", "max_tokens": 8}',
        returns=frozenset({"return_finish_reason", "return_logprobs"}),
        parameters={"timeout_ms": 2000},
    )
    decision = decide(gate, raw)
    assert decision.prompt == "Hello"
    assert decision.request == (
        '{"fusion":"","prepend_prompt":true,"returns":["return_finish_reason","return_logprobs"],'
        '"sampling":{"max_tokens":8,"temperature":0.0},"special_tokens":true,"stream":false}'
    )
    ticket = generate_ticket(decision)
    assert (ticket.department, ticket.principal) == ("fin", "fin-app")
    assert [part.lora_id for part in ticket.parts] == ["fin_risk_v1"]
    assert ticket.deadline_ns == NOW_NS + 2_000_000_000
    assert ticket.expires_ns == NOW_NS + 60_000_000_000
    assert len(ticket.uid) == 32
    cancel = verify(
        decision.cancel_ticket,
        KEY,
        boot_id=BOOT_ID,
        audience=ENGINE_AUDIENCE,
        operation="cancel",
        prompt=CANCEL_PROMPT.encode(),
        request=CANCEL_REQUEST.encode(),
        now_ns=NOW_NS,
    )
    assert cancel == dataclasses.replace(
        ticket,
        operation="cancel",
        prompt_sha256=cancel.prompt_sha256,
        request_sha256=cancel.request_sha256,
        expires_ns=ticket.deadline_ns + 30_000_000_000,
    )
    assert generate_ticket(decide(gate, raw)).uid != ticket.uid


def test_a_cancel_ticket_that_nobody_asked_for_is_not_made(gate: Gate) -> None:
    decision = gate.decide(FIN, now_s=100.0, now_ns=NOW_NS, cancellable=False)
    assert decision.cancel_ticket == ""
    assert generate_ticket(decision).principal == "fin-app"


def test_base(gate: Gate) -> None:
    decision = decide(gate, RawRequest(credential=b"svc-key", text_input=b" "))
    assert decision.prompt == " "
    assert generate_ticket(decision).parts == ()


def test_a_stranger_learns_nothing(make_gate: Callable[..., Gate]) -> None:
    hopeless: dict[str, Any] = {
        "credential": b"wrong",
        "text_input": b"\xff",
        "messages": b"[",
        "lora_id": b"../x",
        "sampling_parameters": b"{",
    }
    for gate in (make_gate(published=False), make_gate()):
        error = refused(gate, **hopeless)
        assert type(error) is Unauthenticated
        assert error.message == "unauthenticated: a valid API key is needed."


def test_no_snapshot(make_gate: Callable[..., Gate]) -> None:
    error = refused(make_gate(published=False), text_input=b"")
    assert type(error) is Unavailable
    assert error.message == "unavailable: the engine is not ready. retry_after=5"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"text_input": None}, "text_input: send exactly one of text_input and messages."),
        ({"messages": b"[]"}, "text_input: send exactly one of text_input and messages."),
        ({"text_input": b""}, "text_input: must not be empty."),
        ({"text_input": b"\xed\xa0\x80"}, "text_input: not UTF-8."),
        ({"text_input": b"x" * 1001}, "text_input: longer than 1000 bytes."),
        ({"text_input": None, "messages": b" " * 1001}, "messages: longer than 1000 bytes."),
        (
            {"stream": True, "can_stream": False},
            "stream: this model answers once; use lora_stream or lora_generate.",
        ),
        (
            {"stream": True, "exclude_input_in_output": False},
            "exclude_input_in_output: must not be false when streaming.",
        ),
        ({"sampling_parameters": b'{"n": 5}'}, "n: 5 is above this server's cap of 4."),
        ({"parameters": {"temperature": "warm"}}, "temperature: must be a number."),
        ({"parameters": {"timeout_ms": 0}}, "timeout_ms: must be above 0."),
        ({"parameters": {"lora_name": "risk", "x-lora-id": "old"}}, "lora_id: lora_id, lora_name"),
    ],
)
def test_wrong_requests(make_gate: Callable[..., Gate], changes: dict[str, Any], says: str) -> None:
    error = refused(make_gate(max_prompt_bytes=1000), **changes)
    assert type(error) is InvalidArgument
    assert error.message.startswith(f"invalid_argument: {says}")


def test_prompts_at_the_bound_and_odd_but_right(make_gate: Callable[..., Gate]) -> None:
    gate = make_gate(max_prompt_bytes=1000)
    for text in (b"x" * 1000, b" ", "\u200b".encode(), b"a\0b", "é".encode() * 500):
        assert decide(gate, dataclasses.replace(FIN, text_input=text)).prompt == text.decode()


def test_access_is_decided_before_sampling_is_looked_at(gate: Gate) -> None:
    bad = b'{"n": 99}'
    assert type(refused(gate, lora_id=b"svc_chat_v1", sampling_parameters=bad)) is NotFound
    assert type(refused(gate, lora_id=b"fin_risk_v2", sampling_parameters=bad)) is AdapterFailed


@pytest.mark.parametrize(
    ("stream", "exclude", "prepend"),
    [
        (None, None, True),
        (False, None, True),
        (False, False, True),
        (False, True, False),
        (True, None, False),
        (True, True, False),
    ],
)
def test_the_prompt_is_prepended_as_the_official_backend_does(
    gate: Gate, stream: bool | None, exclude: bool | None, prepend: bool
) -> None:
    raw = dataclasses.replace(FIN, stream=stream, exclude_input_in_output=exclude)
    request = EngineRequest.from_json(decide(gate, raw).request)
    assert (request.prepend_prompt, request.stream) == (prepend, bool(stream))


def test_messages(gate: Gate) -> None:
    raw = dataclasses.replace(
        FIN,
        text_input=None,
        messages=b'[{"role": "user", "content": "Hi"}]',
        exclude_input_in_output=False,
    )
    decision = decide(gate, raw)
    request = EngineRequest.from_json(decision.request)
    assert decision.prompt == "<s><user>Hi</>\n<assistant>"
    assert (request.prepend_prompt, request.special_tokens) == (False, False)


def test_a_revoked_key_is_refused_within_a_second(gate: Gate, policy_path: Path) -> None:
    decide(gate, FIN)
    policy_path.write_text(policy_path.read_text().replace("fin-app", "fin-new", 1))
    decision = gate.decide(FIN, now_s=101.0, now_ns=NOW_NS)
    assert generate_ticket(decision).principal == "fin-new"
