"""Who may command, and what the engine is shown of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ensemble.admin import AdminGate
from ensemble.audit import GateAudit
from ensemble.policy_source import PolicySource
from python_backend import ticket as tickets
from python_backend.admin.commands import Command
from python_backend.errors import InvalidArgument, ServingError, Unauthenticated
from python_backend.messages import Decision, RawRequest
from tests.unit.ensemble.conftest import BOOT_ID, TICKET_KEY

NOW_NS = 5_000_000_000


class House:
    """A gate and its audit."""

    def __init__(self, policy_path: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self.source = PolicySource(policy_path, recheck_s=0)
        audit = GateAudit(self, "strict")
        self.gate = AdminGate(self.source, TICKET_KEY, BOOT_ID, audit=audit)

    def write(self, record: dict[str, Any]) -> None:
        self.lines.append(record)

    def decide(self, key: str | None, command: bytes) -> Decision:
        raw = RawRequest(credential=None if key is None else key.encode())
        return self.gate.decide(raw, lambda: command, now_s=0.0, now_ns=NOW_NS)

    def command(self, decision: Decision) -> tuple[Command, tickets.Ticket]:
        ticket = tickets.verify(
            decision.ticket,
            TICKET_KEY,
            boot_id=BOOT_ID,
            audience=tickets.ENGINE_AUDIENCE,
            operation="admin",
            prompt=decision.prompt.encode(),
            request=decision.request.encode(),
            now_ns=NOW_NS,
        )
        return Command.from_json(decision.request), ticket


@pytest.fixture
def house(policy_path: Path) -> House:
    return House(policy_path)


def test_an_admin_gets_a_ticket_for_exactly_this_command(house: House) -> None:
    decision = house.decide("admin-key", b'{"op": "remove", "lora_id": "fin_risk_v1"}')
    command, ticket = house.command(decision)
    assert command == Command("remove", lora_id="fin_risk_v1", by_admin=True)
    assert (ticket.department, ticket.principal, ticket.parts) == ("ops", "admin", ())
    with pytest.raises(tickets.InvalidTicket):
        tickets.verify(
            decision.ticket,
            TICKET_KEY,
            boot_id=BOOT_ID,
            audience=tickets.ENGINE_AUDIENCE,
            operation="admin",
            prompt=b"",
            request=decision.request.replace("v1", "v2").encode(),
            now_ns=NOW_NS,
        )
    told, line = house.lines
    assert (told["event"], told["op"]) == ("admin_command", "remove")
    assert told["lora_id"] == "fin_risk_v1"
    assert (line["allowed"], line["resolved"], line["lora_id"]) == (
        True,
        "admin:remove",
        "fin_risk_v1",
    )
    assert line["uid"] == ticket.uid


@pytest.mark.parametrize("op", ["list", "status", "aliases"])
def test_callers_may_not(house: House, op: str) -> None:
    with pytest.raises(Unauthenticated, match="role admin"):
        house.decide("fin-key", json.dumps({"op": op}).encode())
    (line,) = house.lines
    assert (line["allowed"], line["reason"], line["principal"]) == (False, "not_admin", "fin-app")


def test_callers_may_cancel_without_being_admins(house: House) -> None:
    command, ticket = house.command(house.decide("fin-key", b'{"op":"cancel","request_uid":"u"}'))
    assert (command.by_admin, ticket.department) == (False, "fin")


@pytest.mark.parametrize(("key", "command"), [(None, b'{"op":"list"}'), ("none", b"{")])
def test_strangers_learn_nothing(house: House, key: str | None, command: bytes) -> None:
    with pytest.raises(Unauthenticated, match="valid API key"):
        house.decide(key, command)
    assert house.lines[0]["allowed"] is False


def test_bad_commands_are_audited(house: House) -> None:
    with pytest.raises(InvalidArgument):
        house.decide("admin-key", b"{")
    assert house.lines[0]["code"] == "invalid_argument"


def test_status_carries_what_is_wrong_with_the_policy(house: House, policy_path: Path) -> None:
    good = policy_path.read_text()
    policy_path.write_text(yaml.safe_dump({"version": 7}))
    house.source.current(1.0)
    command, _ = house.command(house.decide("admin-key", b'{"op":"status"}'))
    assert str(policy_path) in command.policy_error
    policy_path.write_text(good + "\n")
    house.source.current(2.0)
    command, _ = house.command(house.decide("admin-key", b'{"op":"status"}'))
    assert command.policy_error == ""


def test_what_cannot_be_audited_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from python_backend.audit.writer import AuditError

    def full(_: object) -> None:
        raise AuditError("no space")

    monkeypatch.setattr(house, "write", full)
    with pytest.raises(ServingError) as caught:
        house.decide("admin-key", b'{"op":"list"}')
    assert caught.value.code == "unavailable"
