"""Gates of one server, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ensemble.admin import AdminServer
from ensemble.gate_server import GateServer
from python_backend import runtime, ticket
from python_backend.audit import retention
from python_backend.audit.chain import KEY_FILE
from python_backend.errors import InvalidArgument, Unauthenticated
from python_backend.messages import RawRequest
from python_backend.settings import load
from tests.unit.ensemble.conftest import BOOT_ID

ROOT = Path(__file__).resolve().parents[3]
FIN = RawRequest(credential=b"fin-key", text_input=b"Hello", lora_id=b"fin_risk_v1")


def lines(config: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in retention.files(config.parent / "state" / "audit")
        for line in path.read_bytes().splitlines()
    ]


def test_a_gates_life_is_audited(config: Path, policy_path: Path) -> None:
    server = GateServer(load(config), BOOT_ID, "lora_gate")
    decision = server.decide(lambda: FIN, cancellable=False)
    assert decision.ticket and not decision.cancel_ticket

    def unreadable() -> RawRequest:
        raise InvalidArgument("parameters", "not readable as JSON")

    with pytest.raises(InvalidArgument):
        server.decide(unreadable)
    good = policy_path.read_text()
    policy_path.write_text("version: [")
    server._gate._policy_source._checked_s = float("-inf")
    server.decide(lambda: FIN)
    policy_path.write_text(good.replace("fin-app", "fin-new"))
    server._gate._policy_source._checked_s = float("-inf")
    server.decide(lambda: FIN)
    server.close()
    server.close()
    found = lines(config)
    assert [line["event"] for line in found] == [
        "open", "start", "policy", "decision", "decision", "policy_error", "decision", "policy",
        "decision",
    ]  # fmt: skip
    assert found[3]["uid"] == ticket.peek(decision.ticket).uid
    assert found[4]["code"] == "invalid_argument"
    assert found[6]["principal"] == "fin-app" and found[8]["principal"] == "fin-new"
    assert found[2]["sha256"] != found[7]["sha256"]


OTHER = """
import sys
from pathlib import Path
from ensemble.gate_server import GateServer
from python_backend.messages import RawRequest
from python_backend.settings import load
server = GateServer(load(Path(sys.argv[1])), sys.argv[2], "lora_gate")
for _ in range(20):
    raw = RawRequest(credential=b"fin-key", text_input=b"Hello", lora_id=b"fin_risk_v1")
    print(server.decide(lambda: raw).ticket)
server.close()
"""


def test_gates_in_several_processes_share_one_key(config: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OTHER, str(config), BOOT_ID],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    tokens = [line for p in processes for line in p.communicate(timeout=60)[0].split()]
    assert [p.returncode for p in processes] == [0, 0, 0]
    key = runtime.ticket_key(config.parent / "state" / "run")
    uids = set()
    for token in tokens:
        seen = ticket.peek(token)
        uids.add(seen.uid)
        with pytest.raises(ticket.InvalidTicket) as error:
            ticket.verify(
                token, key, boot_id=BOOT_ID, audience=ticket.ENGINE_AUDIENCE,
                operation="generate", prompt=b"Hello", request=b"", now_ns=0,
            )  # fmt: skip
        # Everything up to the request's own JSON, which this test does not have, was right.
        assert error.value.reason == "another prompt or request"
    assert len(uids) == 60
    assert len(retention.files(config.parent / "state" / "audit")) == 3
    assert sum(line["event"] == "decision" for line in lines(config)) == 60


def test_the_audits_key_is_made_once_and_is_nobody_elses(config: Path) -> None:
    for _ in range(2):
        GateServer(load(config), BOOT_ID, "lora_gate").close()
    key = config.parent / "state" / "audit" / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_bytes() != runtime.ticket_key(config.parent / "state" / "run")


def test_an_audit_switched_off(config: Path) -> None:
    config.write_text(config.read_text() + "audit: {enabled: false}\n")
    server = GateServer(load(config), BOOT_ID, "lora_gate")
    server.decide(lambda: FIN)
    with pytest.raises(Unauthenticated):
        server.decide(lambda: RawRequest())
    server.close()
    assert not (config.parent / "state" / "audit").exists()


def test_what_the_admin_door_cannot_read_is_audited_too(config: Path) -> None:
    server = AdminServer(load(config), BOOT_ID, "lora_admin")

    def unreadable() -> RawRequest:
        raise InvalidArgument("credential", "exactly one element is expected, not 2")

    with pytest.raises(InvalidArgument):
        server.decide(unreadable, lambda: b"{}")
    server.close()
    _, line = lines(config)
    assert (line["event"], line["allowed"], line["code"]) == ("decision", False, "invalid_argument")
