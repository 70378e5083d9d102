from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.errors import Overloaded
from python_backend.ticket import (
    InvalidTicket,
    Part,
    SeenUids,
    Ticket,
    peek,
    sha256_hex,
    sign,
    verify,
)

KEY = bytes(range(32))
PROMPT, REQUEST = b"Hello", b'{"sampling":{}}'
TICKET = Ticket(
    boot_id="b" * 32,
    audience="vllm_lora",
    operation="generate",
    uid="u" * 32,
    department="fin",
    principal="fin-app",
    parts=(Part("fin_risk_v1", "d" * 64, 0.1), Part("fin_risk_v2", "e" * 64, 0.2)),
    prompt_sha256=sha256_hex(PROMPT),
    request_sha256=sha256_hex(REQUEST),
    deadline_ns=1_000,
    expires_ns=2_000,
)


def check(token: str, **changes: Any) -> Ticket:
    expected: dict[str, Any] = {
        "boot_id": TICKET.boot_id,
        "audience": "vllm_lora",
        "operation": "generate",
        "prompt": PROMPT,
        "request": REQUEST,
        "now_ns": 1_999,
    }
    return verify(token, KEY, **{**expected, **changes})


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def split(token: str) -> tuple[bytes, bytes]:
    payload, mac = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
    return payload, mac


def resigned(payload: bytes) -> str:
    mac = hmac.new(KEY, b"lora-ticket\0" + payload, hashlib.sha256).digest()
    return f"{b64(payload)}.{b64(mac)}"


def test_round_trip_is_exact() -> None:
    assert check(sign(TICKET, KEY)) == TICKET
    assert peek(sign(TICKET, KEY)) == TICKET


EDITS: list[tuple[str, Any]] = [
    ("boot_id", "c" * 32),
    ("audience", "lora_admin"),
    ("operation", "cancel"),
    ("uid", "v" * 32),
    ("department", "svc"),
    ("principal", "svc-app"),
    ("parts", ()),
    ("parts", (TICKET.parts[0],)),
    ("parts", TICKET.parts[::-1]),
    ("parts", (dataclasses.replace(TICKET.parts[0], lora_id="svc_chat_v1"), TICKET.parts[1])),
    ("parts", (dataclasses.replace(TICKET.parts[0], digest="f" * 64), TICKET.parts[1])),
    ("parts", (dataclasses.replace(TICKET.parts[0], weight=0.1 + 2e-17), TICKET.parts[1])),
    ("prompt_sha256", sha256_hex(b"other")),
    ("request_sha256", sha256_hex(b"other")),
    ("deadline_ns", 1_001),
    ("expires_ns", 2_001),
]


@pytest.mark.parametrize(("field", "value"), EDITS)
def test_every_field_edited_alone_is_refused(field: str, value: Any) -> None:
    edited = dataclasses.replace(TICKET, **{field: value})
    payload = split(sign(edited, bytes(32)))[0]
    mac = split(sign(TICKET, KEY))[1]
    with pytest.raises(InvalidTicket) as error:
        check(f"{b64(payload)}.{b64(mac)}")
    assert error.value.reason == "MAC"
    assert error.value.message == (
        "unauthenticated: this model is called through its gate; the ticket is not valid."
    )


def test_every_field_is_edited_above() -> None:
    assert {field for field, _ in EDITS} == {field.name for field in dataclasses.fields(Ticket)}


@given(st.integers(0), st.integers(0, 255))
def test_any_byte_changed_is_refused(at: int, value: int) -> None:
    token = bytearray(sign(TICKET, KEY).encode())
    if token[at % len(token)] == value:
        return
    token[at % len(token)] = value
    with pytest.raises(InvalidTicket):
        check(token.decode("latin-1"))


@given(st.lists(st.text(max_size=6), min_size=4, max_size=4), st.integers(0, 3), st.data())
def test_text_cannot_move_between_fields(texts: list[str], at: int, data: Any) -> None:
    """Length prefixes: two tickets have one encoding only if they are equal."""
    uid, department, principal, audience = texts
    one = dataclasses.replace(
        TICKET, uid=uid, department=department, principal=principal, audience=audience
    )
    shifted = list(texts)
    text = shifted[at]
    cut = data.draw(st.integers(0, len(text)))
    shifted[at], shifted[(at + 1) % 4] = text[:cut], text[cut:] + shifted[(at + 1) % 4]
    two = dataclasses.replace(
        TICKET, uid=shifted[0], department=shifted[1], principal=shifted[2], audience=shifted[3]
    )
    assert (sign(one, KEY) == sign(two, KEY)) is (one == two)
    assert peek(sign(one, KEY)) == one


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"now_ns": 2_000}, "expired"),
        ({"boot_id": "c" * 32}, "another boot"),
        ({"audience": "lora_admin"}, "another audience or operation"),
        ({"operation": "cancel"}, "another audience or operation"),
        ({"prompt": b"Hello "}, "another prompt or request"),
        ({"request": b"{}"}, "another prompt or request"),
    ],
)
def test_a_good_ticket_for_something_else(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTicket) as error:
        check(sign(TICKET, KEY), **changes)
    assert error.value.reason == reason


GOOD = sign(TICKET, KEY)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "a.b",
        "é",
        GOOD[:-1],
        GOOD + "=",
        GOOD.replace(".", ""),
        GOOD + ".x",
        " " + GOOD,
        GOOD + "\n",
        "A" * 20_000,
        sign(TICKET, bytes(32)),
        resigned(b"\0\0\0"),
        resigned(b"\xff\xff\xff\xff"),
        resigned(b"\0\0\0\1\xff"),
        resigned(b""),
        resigned(split(GOOD)[0] + b"\0\0\0\0"),
    ],
)
def test_malformed_tokens(token: str) -> None:
    with pytest.raises(InvalidTicket):
        check(token)


def test_a_second_spelling_of_the_base64_is_refused() -> None:
    payload, _, mac = GOOD.partition(".")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # 32 bytes leave two unused bits in the last character.
    other = mac[:-1] + alphabet[alphabet.index(mac[-1]) | 1]
    assert other != mac and split(f"{payload}.{other}") == split(GOOD)
    with pytest.raises(InvalidTicket) as error:
        check(f"{payload}.{other}")
    assert error.value.reason == "not canonical base64url"


def test_a_uid_is_used_once_per_operation() -> None:
    seen = SeenUids()
    seen.use(TICKET, 0)
    seen.use(dataclasses.replace(TICKET, operation="cancel"), 0)
    with pytest.raises(InvalidTicket) as error:
        seen.use(TICKET, 0)
    assert error.value.reason == "used before"
    assert len(seen) == 2


def test_full_of_live_tickets_refuses_the_next_and_forgets_none() -> None:
    seen = SeenUids(limit=2)
    for uid in ("a", "b"):
        seen.use(dataclasses.replace(TICKET, uid=uid), 0)
    with pytest.raises(Overloaded):
        seen.use(dataclasses.replace(TICKET, uid="c"), 1_999)
    for uid in ("a", "b"):
        with pytest.raises(InvalidTicket):
            seen.use(dataclasses.replace(TICKET, uid=uid), 1_999)
    seen.use(dataclasses.replace(TICKET, uid="c", expires_ns=5_000), 2_000)
    assert len(seen) == 1


def test_of_many_at_once_exactly_one_uses_a_uid() -> None:
    seen, threads, rounds = SeenUids(), 8, 200
    barrier = threading.Barrier(threads)
    won: list[int] = []

    def race() -> None:
        for number in range(rounds):
            ticket = dataclasses.replace(TICKET, uid=str(number))
            barrier.wait()
            try:
                seen.use(ticket, 0)
            except InvalidTicket:
                continue
            won.append(number)

    runners = [threading.Thread(target=race) for _ in range(threads)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    assert sorted(won) == list(range(rounds))
    assert len(seen) == rounds
