"""``tools audit`` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from python_backend.access_settings import AuditSettings
from python_backend.audit import retention
from python_backend.audit.writer import open_writer
from tools.audit.command import app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    gate = open_writer(tmp_path, "lora_gate", AuditSettings(sync="none"))
    engine = open_writer(tmp_path, "vllm_lora", AuditSettings(sync="none"))
    assert gate is not None and engine is not None
    for uid, outcome in (("1", "ok"), ("2", "ok"), ("3", "cancelled")):
        common = {"uid": uid, "department": "fin"}
        gate.write({"event": "decision", "allowed": True, "deadline_s": 1, **common})
        engine.write(
            {"event": "completion", "outcome": outcome, "served": "fin_risk_v1@d", **common,
             "input_tokens": 3, "output_tokens": 4}
        )  # fmt: skip
    for department in ("", "fin", "fin"):
        gate.write(
            {"event": "decision", "allowed": False, "code": "not_found", "reason": "not_allowed",
             "department": department, "lora_id": "[red]x"}
        )  # fmt: skip
    engine.write({"event": "engine_refusal", "outcome": "unauthenticated", "reason": "MAC"})
    gate.close()
    engine.close()
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_verify(folder: Path) -> None:
    code, text = run("verify", str(folder))
    assert code == 0 and text.startswith("whole: 2 files, 12 lines, 6 decisions, 3 allowed")
    body: dict[str, Any] = json.loads(run("verify", str(folder), "--json")[1])
    assert (body["completions"], body["findings"], body["exit_code"]) == (3, [], 0)
    path = retention.files(folder)[0]
    path.write_bytes(path.read_bytes().replace(b'"fin"', b'"svc"', 1))
    code, text = run("verify", str(folder))
    assert code == 1 and f"tampered: {path.name}:2: the line was edited" in text


def test_verify_without_a_key(folder: Path, tmp_path: Path) -> None:
    (folder / "audit.key").rename(tmp_path / "elsewhere")
    assert run("verify", str(folder))[0] == 3
    assert run("verify", str(folder), "--key", str(tmp_path / "elsewhere"))[0] == 0
    assert run("verify", str(tmp_path / "none"))[0] == 3


def test_tail(folder: Path) -> None:
    lines = [json.loads(line) for line in run("tail", str(folder), "-n", "3")[1].splitlines()]
    assert len(lines) == 3
    assert len(run("tail", str(folder))[1].splitlines()) == 12


def test_report(folder: Path) -> None:
    summary = json.loads(run("report", str(folder), "--json")[1])
    by_name = {(r["department"], r["what"]): r for r in summary["adapters"]}
    row = by_name["fin", "fin_risk_v1@d"]
    assert (row["calls"], row["failed"], row["input_tokens"], row["output_tokens"]) == (3, 1, 9, 12)
    assert by_name["fin", "(refused by the gate)"]["refused"] == 2
    assert [(r["department"], r["what"], r["refused"]) for r in summary["refusals"]] == [
        ("fin", "not_found: not_allowed", 2),
        ("-", "not_found: not_allowed", 1),
        ("-", "unauthenticated: MAC (at the engine)", 1),
    ]
    rows = list(csv.reader(run("report", str(folder), "--csv")[1].splitlines()))
    assert rows[0][:3] == ["table", "department", "what"] and len(rows) == 7
    assert "fin_risk_v1@d" in run("report", str(folder))[1]
    assert run("report", str(folder), "--json", "--hours", "0")[0] == 0
