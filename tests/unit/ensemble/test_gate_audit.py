"""Every decision has its line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble.audit import GateAudit, record_of
from ensemble.enforcement import Trace
from python_backend.audit import chain
from python_backend.errors import NotFound, Unauthenticated, Unavailable
from python_backend.messages import RawRequest
from python_backend.ticket import peek
from tests.unit.ensemble.audit_house import FIN, Lines


def test_an_allowed_decision(make_house: Any) -> None:
    house = make_house()
    decision = house.gate.decide(FIN, now_s=100.0, now_ns=10**12)
    (line,) = house.lines.lines
    ticket = peek(decision.ticket)
    assert line == {
        "event": "decision",
        "allowed": True,
        "code": "",
        "reason": "",
        "department": "fin",
        "principal": "fin-app",
        "via": "api_key",
        "lora_id": "fin_risk_v1",
        "resolved": "fin_risk_v1",
        "digests": [ticket.parts[0].digest],
        "uid": ticket.uid,
        "prompt_sha256": hashlib.sha256(b"my secret prompt").hexdigest(),
        "deadline_s": 300.0,
    }
    assert "secret prompt" not in json.dumps(line) and "fin-key" not in json.dumps(line)


@pytest.mark.parametrize(
    ("changes", "code", "reason", "lora_id", "principal"),
    [
        ({"credential": None}, "unauthenticated", "no_credential", "fin_risk_v1", ""),
        ({"credential": b"x"}, "unauthenticated", "unknown_key", "fin_risk_v1", ""),
        ({"credential": b"\xff"}, "unauthenticated", "unreadable_credential", "fin_risk_v1", ""),
        (
            {"parameters": {"x-api-key": "svc-key"}},
            "unauthenticated", "credentials_differ", "fin_risk_v1", "",
        ),
        ({"lora_id": b"svc_chat_v1"}, "not_found", "not_allowed", "svc_chat_v1", "fin-app"),
        ({"lora_id": b"fin_none_v1"}, "not_found", "unknown_adapter", "fin_none_v1", "fin-app"),
        ({"lora_id": b"fin_risk_v3"}, "not_found", "not_ready", "fin_risk_v3", "fin-app"),
        ({"lora_id": None}, "not_found", "base_not_allowed", "", "fin-app"),
        ({"lora_id": b"fin_risk_v2"}, "adapter_failed", "", "fin_risk_v2", "fin-app"),
        ({"lora_id": b"../x"}, "invalid_argument", "", "../x", "fin-app"),
        ({"text_input": None}, "invalid_argument", "", "fin_risk_v1", "fin-app"),
    ],
)  # fmt: skip
def test_refusals(
    make_house: Any, changes: dict[str, Any], code: str, reason: str, lora_id: str, principal: str
) -> None:
    line = make_house().decide(**changes)
    assert line["allowed"] is False and line["uid"] == ""
    assert (line["code"], line["reason"]) == (code, reason)
    assert (line["lora_id"], line["principal"]) == (lora_id, principal)
    sent = changes.get("text_input", FIN.text_input)
    assert line["prompt_sha256"] == (hashlib.sha256(sent).hexdigest() if sent else "")


def test_an_alias_is_audited_with_what_it_stands_for(make_house: Any) -> None:
    line = make_house().decide(lora_id=b"risk")
    assert (line["allowed"], line["lora_id"], line["resolved"]) == (True, "risk", "fin_risk_v1")


@pytest.mark.parametrize(
    "name",
    [b'x\n{"event":"allow"}', b"\x1b[2J", "\u2028".encode(), b"\xff\xfe", b"a" * 1_000_000],
)
def test_names_cannot_forge_lines(make_house: Any, name: bytes) -> None:
    house = make_house()
    for changes in (
        {"lora_id": name},
        {"lora_id": None, "parameters": {"lora_id": name.decode("utf-8", "surrogateescape")}},
        {"lora_id": name, "credential": b"nobody"},
    ):
        line = house.decide(**changes)
        assert len(line["lora_id"]) <= 128
        assert line["lora_id"].isascii() and line["lora_id"].isprintable()


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    lora_id=st.none() | st.binary(),
    prompt=st.none() | st.binary(),
    parameters=st.dictionaries(
        st.sampled_from(["lora_id", "Lora_Name", "x-lora-id", "x-api-key"]) | st.text(), HOSTILE
    ),
)
def test_every_request_can_be_written_down(
    lora_id: bytes | None, prompt: bytes | None, parameters: dict[str, Any]
) -> None:
    is_written(RawRequest(text_input=prompt, lora_id=lora_id, parameters=parameters))


@pytest.mark.parametrize("value", [nested(100_000), 10**5000, [10**5000]], ids=["deep", "n", "[n]"])
def test_so_can_what_python_cannot_show(value: Any) -> None:
    is_written(RawRequest(parameters={"lora_id": value}))


def is_written(raw: RawRequest) -> None:
    line = record_of(raw, Trace(), NotFound(), "strict")
    sealed, _ = chain.seal(line, chain.GENESIS, bytes(32))
    assert sealed.count(b"\n") == 1 and sealed.endswith(b"\n")
    assert chain.unseal(sealed[:-1], chain.GENESIS, bytes(32)).record == line
    assert len(line["lora_id"]) <= 128


def test_strict_refuses_what_cannot_be_audited(make_house: Any) -> None:
    house = make_house()
    house.lines.broken = True
    for changes in ({}, {"credential": b"x"}, {"lora_id": b"svc_chat_v1"}):
        with pytest.raises(Unavailable, match="cannot be audited") as error:
            house.gate.decide(dataclasses.replace(FIN, **changes), now_s=100.0, now_ns=1)
        assert error.value.retry_after == 5
    house.lines.broken = False
    assert house.decide()["allowed"]


@pytest.mark.parametrize("control", ["permissive", "off"])
def test_the_others_serve_on(make_house: Any, control: str) -> None:
    house = make_house(control)
    house.lines.broken = True
    house.gate.decide(FIN, now_s=100.0, now_ns=1)


def test_a_department_header_proves_nothing(make_house: Any) -> None:
    line = make_house().decide(lora_id=b"svc_chat_v1", parameters={"X-Department": "svc"})
    assert (line["reason"], line["department"]) == ("not_allowed", "fin")
    assert make_house().decide(parameters={"x-department": "svc"})["department"] == "fin"


class Counting(dict[str, Any]):
    """A catalog that counts how often it is asked."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


def test_unknown_and_forbidden_are_one_answer_and_the_same_work(
    make_house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = make_house()
    snapshot = house.gate._snapshots.current(0.0)
    entries = Counting(snapshot.entries)
    object.__setattr__(snapshot, "entries", entries)
    policy = house.gate._policy_source.current(0.0)
    calls: list[str] = []
    real = type(policy).may_use

    def counted(self: Any, principal: Any, lora_id: str) -> bool:
        calls.append("may_use")
        return real(self, principal, lora_id)

    monkeypatch.setattr(type(policy), "may_use", counted)
    seen = set()
    for name in (b"fin_none_v1", b"svc_chat_v1", b"svc_none_v1", b"svc_chat_v2", b"fin_risk_v3"):
        calls.clear()
        entries.asked = 0
        with pytest.raises(NotFound) as error:
            house.gate.decide(dataclasses.replace(FIN, lora_id=name), now_s=0.0, now_ns=1)
        seen.add((error.value.message, error.value.triton_status, len(calls), entries.asked))
    assert len(seen) == 1
    assert next(iter(seen))[2:] == (1, 1)


def test_gates_share_key_and_policy(make_house: Any) -> None:
    one, two = make_house(), make_house()
    first = one.gate.decide(FIN, now_s=100.0, now_ns=10**12)
    second = two.gate.decide(FIN, now_s=100.0, now_ns=10**12)
    assert peek(first.ticket).uid != peek(second.ticket).uid
    assert peek(first.ticket).boot_id == peek(second.ticket).boot_id


def test_what_is_not_ours_is_audited_with_its_error_id(
    make_house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = make_house()
    monkeypatch.setattr("ensemble.gate.route", lambda *a, **k: 1 / 0)
    line = house.decide()
    assert line["code"] == "internal" and len(line["reason"]) == 12


def test_events_never_raise() -> None:
    lines = Lines()
    lines.broken = True
    audit = GateAudit(lines, "strict")
    audit.event("policy_error", text="x")
    assert audit.lost == 1
    GateAudit(None, "strict").event("policy_error", text="x")
    GateAudit(None, "strict").decided(FIN, Trace(), Unauthenticated("x"))
