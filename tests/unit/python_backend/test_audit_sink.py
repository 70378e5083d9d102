"""The engine's half of the audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from python_backend import errors
from python_backend.access_settings import AuditSettings
from python_backend.audit import retention
from python_backend.audit.completions import AuditSink, record_of
from python_backend.audit.writer import AuditError, Writer
from python_backend.completion import Completion
from python_backend.ticket import Part, Ticket
from tests.unit.python_backend.service_house import House, run

KEY = bytes(range(32))
TICKET = Ticket(
    "b",
    "vllm_lora",
    "generate",
    "u1",
    "fin",
    "fin-app",
    (Part("fin_risk_v1", "d"),),
    "p",
    "r",
    1,
    2,
)


def sink(folder: Path, *, strict: bool = True) -> AuditSink:
    writer = Writer(folder, "vllm_lora", KEY, AuditSettings(sync="none"))
    return AuditSink(writer, strict=strict)


def lines(folder: Path) -> list[dict[str, Any]]:
    (path,) = retention.files(folder)
    return [json.loads(line) for line in path.read_bytes().splitlines()][1:]


def test_the_line_of_a_completion() -> None:
    done = Completion(TICKET, "ok", "", "fin_risk_v1@d", ("stop",), 5, 7, 0.25, 0.1)
    assert record_of(done) == {
        "event": "completion",
        "outcome": "ok",
        "reason": "",
        "uid": "u1",
        "department": "fin",
        "principal": "fin-app",
        "served": "fin_risk_v1@d",
        "finish_reasons": ["stop"],
        "input_tokens": 5,
        "output_tokens": 7,
        "latency_ms": 250.0,
        "ttft_ms": 100.0,
    }
    assert record_of(Completion(None, "unauthenticated", "MAC")) == {
        "event": "engine_refusal",
        "outcome": "unauthenticated",
        "reason": "MAC",
    }


def test_calls_end_in_the_file(tmp_path: Path) -> None:
    audit = sink(tmp_path)

    async def test(house: House) -> None:
        house.service._sink = audit
        good, signed = house.call(prompt="my secret prompt")
        await house.handle(good)
        await house.handle(good)
        await house.handle(house.cancel(signed))
        late, _ = house.call(deadline_s=-1)
        await house.handle(late)

    run(test)
    audit.close()
    audit.close()
    found = lines(tmp_path)
    assert [(line["event"], line["outcome"]) for line in found] == [
        ("completion", "ok"),
        ("engine_refusal", "unauthenticated"),
        ("cancel", "ok"),
        ("completion", "deadline_exceeded"),
    ]
    assert found[0]["output_tokens"] == 3
    assert "secret" not in retention.files(tmp_path)[0].read_text()


@pytest.mark.parametrize("strict", [True, False])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    audit = sink(tmp_path, strict=strict)
    full = True
    real = Writer.write

    def write(self: Writer, record: dict[str, Any]) -> None:
        if full:
            raise AuditError("No space left on device")
        real(self, record)

    monkeypatch.setattr(Writer, "write", write)
    audit.check()
    audit.record(Completion(TICKET, "ok"))
    while not audit.lost:
        pass
    if not strict:
        audit.check()
        audit.close()
        return
    with pytest.raises(errors.Unavailable, match="cannot be audited"):
        audit.check()
    full = False
    audit.check()
    audit.record(Completion(TICKET, "ok"))
    audit.close()
    assert [line["event"] for line in lines(tmp_path)] == ["recovered", "completion"]
    assert lines(tmp_path)[0]["lost"] == 1


def test_strangers_get_a_few_lines_a_second_and_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    audit = sink(tmp_path)
    refused = Completion(None, "unauthenticated", "ticket", "", (), 0, 0, 0.0, None)
    for _ in range(1000):
        audit.record(refused)
    now_s = 101.0
    audit.record(refused)
    for _ in range(30):
        audit.record(Completion(TICKET, "ok", "", "base", ("stop",), 1, 1, 0.1, 0.1))
    audit.close()
    written = lines(tmp_path)
    strangers = [line for line in written if "uid" not in line and "withheld" in line]
    assert len(strangers) == 21
    assert sum(line["withheld"] for line in strangers) == 980
    assert sum(line.get("uid") == "u1" for line in written) == 30
