"""The engine model answers to its gate's tickets, each once, and to nothing else."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from python_backend import ticket as tickets
from python_backend.ticket import Part, Ticket
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Refused, Reply, expect_error, grpc_request, sampling

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]

REFUSED = "this model is called through its gate; the ticket is not valid."


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the gate says when it is called directly, which anybody may do."""

    prompt: str
    request: str
    ticket: str
    cancel_ticket: str

    def inputs(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "request": self.request, "ticket": self.ticket}


Decide = Callable[..., Decision]


@pytest.fixture
def decide(client: Client) -> Decide:
    """A fresh decision of the real gate."""

    def decision(**fields: Any) -> Decision:
        sent = {"text_input": "Hi", "lora_id": "mark_w0001_v1", "sampling_parameters": sampling()}
        outputs = client.infer_grpc("lora_gate", **{**sent, **fields}).outputs
        return Decision(**{name: values[0] for name, values in outputs.items()})

    return decision


def call_engine(client: Client, inputs: dict[str, Any]) -> Reply:
    """Calls the engine model on a gRPC stream, as its models do."""
    (stream,) = client.streams_grpc([grpc_request("vllm_lora", inputs, request_id="1")]).values()
    assert stream.finals == 1
    return stream.checked().replies[-1]


def is_refused(client: Client, inputs: dict[str, Any]) -> None:
    with expect_error("unauthenticated") as caught:
        call_engine(client, inputs)
    assert caught.value.sentence == REFUSED


def test_a_ticket_is_good_once(client: Client, decide: Decide) -> None:
    decision = decide()
    assert call_engine(client, decision.inputs()).text == "Hi alpha alpha alpha alpha"
    for _ in range(3):
        is_refused(client, decision.inputs())


def test_the_ticket_says_what_was_asked_for(decide: Decide) -> None:
    ticket = tickets.peek(decide().ticket)
    assert (ticket.department, ticket.principal) == ("ops", "operator")
    assert [part.lora_id for part in ticket.parts] == ["mark_w0001_v1"]
    assert tickets.peek(decide(lora_id="base").ticket).parts == ()


def test_sixteen_at_once_with_one_ticket(client: Client, decide: Decide) -> None:
    inputs = decide().inputs()

    def one(_: int) -> str:
        try:
            return call_engine(client, inputs).text
        except Refused as refused:
            return refused.message

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, range(16)))
    assert sorted(answers) == ["Hi alpha alpha alpha alpha"] + [f"unauthenticated: {REFUSED}"] * 15


@pytest.mark.parametrize(
    "token", ["", "x", ".", "a.b", "=" * 50, "x" * 20_000, "ключ", "AAAA.AAAA", "\0"], ids=ascii
)
def test_no_ticket(client: Client, decide: Decide, token: str) -> None:
    inputs = {**decide().inputs(), "ticket": token}
    is_refused(client, inputs)
    with expect_error("unauthenticated"):
        client.generate("vllm_lora", credential=None, **inputs)


def test_a_bit_more_or_less(client: Client, decide: Decide) -> None:
    inputs = decide().inputs()
    token = inputs["ticket"]
    payload, mac = token.split(".")
    changed = [token[:-1], token + "A", token + "=", f"{payload}.{mac[:-2]}", f"{mac}.{payload}"]
    changed += [payload, f"{payload}.", f"{payload}.{'A' * len(mac)}", " " + token, token + "\n"]
    for index in (0, 7, len(payload) // 2, len(payload) + 5):
        other = "A" if token[index] != "A" else "B"
        changed.append(token[:index] + other + token[index + 1 :])
    for other in changed:
        is_refused(client, {**inputs, "ticket": other})
    assert call_engine(client, inputs).served.startswith("mark_w0001_v1@")


@pytest.mark.parametrize(
    "change",
    [
        {"boot_id": "0" * 32},
        {"audience": "lora_admin"},
        {"operation": "cancel"},
        {"operation": "admin"},
        {"uid": "0" * 32},
        {"department": "fin"},
        {"principal": "fin-app"},
        {"parts": ()},
        {"parts": (Part("fin_risk_v1", "0" * 64),)},
        {"prompt_sha256": tickets.sha256_hex(b"other")},
        {"request_sha256": tickets.sha256_hex(b"{}")},
        {"deadline_ns": 2**62},
        {"expires_ns": 2**62},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_edited_ticket(client: Client, decide: Decide, change: dict[str, Any]) -> None:
    """Every field is signed: the old MAC with any new field is refused."""
    inputs = decide().inputs()
    mac = inputs["ticket"].split(".")[1]
    edited = dataclasses.replace(tickets.peek(inputs["ticket"]), **change)
    payload = tickets.sign(edited, secrets.token_bytes(32)).split(".")[0]
    is_refused(client, {**inputs, "ticket": f"{payload}.{mac}"})
    assert call_engine(client, inputs).served.startswith("mark_w0001_v1@")


def test_another_key(client: Client, decide: Decide) -> None:
    inputs = decide().inputs()
    forged = tickets.sign(tickets.peek(inputs["ticket"]), secrets.token_bytes(32))
    is_refused(client, {**inputs, "ticket": forged})


def test_another_prompt_or_request(client: Client, decide: Decide) -> None:
    inputs = decide().inputs()
    is_refused(client, {**inputs, "prompt": "Hi!"})
    is_refused(client, {**inputs, "prompt": ""})
    other = decide(sampling_parameters=sampling(max_tokens=1000)).request
    is_refused(client, {**inputs, "request": other})
    is_refused(client, {**inputs, "request": inputs["request"] + " "})
    assert call_engine(client, inputs).text == "Hi alpha alpha alpha alpha"


class TestWithTheServersOwnKey:
    """What the right key signs is still held to time, boot, audience and operation."""

    def signed(self, server: Server, decision: Decision, **change: Any) -> dict[str, Any]:
        ticket: Ticket = dataclasses.replace(
            tickets.peek(decision.ticket), uid=secrets.token_hex(16), **change
        )
        return {**decision.inputs(), "ticket": tickets.sign(ticket, server.ticket_key)}

    def test_the_test_signs_as_the_gate_does(
        self, server: Server, client: Client, decide: Decide
    ) -> None:
        reply = call_engine(client, self.signed(server, decide()))
        assert reply.text == "Hi alpha alpha alpha alpha"

    @pytest.mark.parametrize(
        "change",
        [{"boot_id": "0" * 32}, {"audience": "lora_admin"}, {"operation": "admin"}],
        ids=str,
    )
    def test_for_something_else(
        self, server: Server, client: Client, decide: Decide, change: dict[str, Any]
    ) -> None:
        is_refused(client, self.signed(server, decide(), **change))

    def test_expired(self, server: Server, client: Client, decide: Decide) -> None:
        past = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 1
        is_refused(client, self.signed(server, decide(), deadline_ns=past, expires_ns=past))

    def test_past_its_deadline(self, server: Server, client: Client, decide: Decide) -> None:
        past = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 1
        with expect_error("deadline_exceeded"):
            call_engine(client, self.signed(server, decide(), deadline_ns=past))

    def test_a_version_that_does_not_exist(
        self, server: Server, client: Client, decide: Decide
    ) -> None:
        parts = (Part("mark_w0001_v1", "0" * 64),)
        with pytest.raises(Refused) as caught:
            call_engine(client, self.signed(server, decide(), parts=parts))
        assert caught.value.code in ("not_found", "unavailable"), caught.value.message


def test_a_cancel_ticket_generates_nothing(client: Client, decide: Decide) -> None:
    decision = decide()
    is_refused(client, {**decision.inputs(), "ticket": decision.cancel_ticket})


def test_a_cancel_before_its_request(client: Client, decide: Decide) -> None:
    """A door's two calls may overtake each other."""
    decision = decide()
    cancel = {
        "prompt": tickets.CANCEL_PROMPT,
        "request": tickets.CANCEL_REQUEST,
        "ticket": decision.cancel_ticket,
    }
    (done,) = client.streams_grpc([grpc_request("vllm_lora", cancel)]).values()
    assert (done.replies, done.finals, done.error) == ([], 1, None)
    with expect_error("cancelled"):
        call_engine(client, decision.inputs())


def test_the_gate_wants_a_key_too(client: Client) -> None:
    with expect_error("unauthenticated"):
        client.infer_grpc("lora_gate", text_input="Hi", credential="wrong")


def test_what_a_door_forwards_proves_nothing(server: Server, client: Client) -> None:
    """A caller who plays a door is held to the same rules as one who does not."""
    forwarded = '{"parameters": {"lora_id": "mark_w0001_v1"}, "timeout_us": 0, "can_stream": true}'
    fields: dict[str, Any] = {"text_input": "Hi", "forwarded": forwarded}
    with expect_error("not_found"):
        client.infer_grpc("lora_gate", credential=server.keys["fin"], **fields)
    for bad in ("", "[]", "{}", '{"parameters": 1}', "\0"):
        with expect_error("invalid_argument", "forwarded: "):
            client.infer_grpc("lora_gate", **{**fields, "forwarded": bad})
