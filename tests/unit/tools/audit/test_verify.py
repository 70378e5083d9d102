"""Every kind of tampering is found; a kill is not taken for one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from python_backend.access_settings import AuditSettings
from python_backend.audit import chain, retention
from python_backend.audit.writer import Writer
from tools.audit.findings import Kind, Verdict
from tools.audit.verify import TRUNCATED, verify

KEY = bytes(range(32))
NOW = 1_800_000_000.0
ROOT = Path(__file__).resolve().parents[4]


def writer(folder: Path, name: str = "lora_gate", **settings: Any) -> Writer:
    options: dict[str, Any] = {"sync": "none", "keep": 100, **settings}
    return Writer(folder, name, KEY, AuditSettings(**options), clock=lambda: NOW)


def decision(uid: str, **fields: Any) -> dict[str, Any]:
    return {
        "event": "decision", "allowed": True, "uid": uid, "department": "fin", "deadline_s": 10,
        "text": "t" * 100, **fields,
    }  # fmt: skip


def completion(uid: str, **fields: Any) -> dict[str, Any]:
    return {"event": "completion", "uid": uid, "department": "fin", "outcome": "ok", **fields}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models' audits, the gate's in several files, closed in order."""
    gate, engine = writer(tmp_path, max_bytes=4096), writer(tmp_path, "vllm_lora")
    for n in range(40):
        gate.write(decision(f"u{n}"))
        engine.write(completion(f"u{n}"))
    gate.close()
    engine.close()
    return tmp_path


def look(folder: Path, now_s: float = NOW + 1000) -> Verdict:
    return verify(folder, KEY, now_s=now_s)


def gate_files(folder: Path) -> list[Path]:
    return [path for path in retention.files(folder) if path.name.startswith("lora_gate")]


def test_what_nobody_touched_is_whole(folder: Path) -> None:
    verdict = look(folder)
    assert (verdict.findings, verdict.exit_code) == ([], 0)
    assert (verdict.decisions, verdict.allowed, verdict.completions) == (40, 40, 40)
    assert len(gate_files(folder)) > 2


def edit(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def replaced(lines: list[bytes], at: int, old: bytes, new: bytes) -> list[bytes]:
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new)
    return lines


LINES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "edited": (lambda ls: replaced(ls, 3, b'"fin"', b'"svc"'), "edited"),
    "one byte": (lambda ls: replaced(ls, 3, b"ttt", b"tTt"), "edited"),
    "seq edited": (lambda ls: replaced(ls, 3, b'"seq":', b'"seq":1'), "missing or in another"),
    "removed": (lambda ls: ls[:3] + ls[4:], "missing or in another order"),
    "doubled": (lambda ls: ls[:4] + ls[3:], "missing or in another order"),
    "swapped": (lambda ls: [*ls[:3], ls[4], ls[3], *ls[5:]], "missing or in another order"),
    "cut off": (lambda ls: ls[:-2], "cut off"),
    "half a line": (lambda ls: [*ls[:-1], ls[-1][:50]], "not a line"),
    "first removed": (lambda ls: ls[1:], "not a line"),
    "emptied": (lambda ls: [], "cut off"),
    "mac edited": (lambda ls: replaced(ls, 3, ls[3][-20:-10], b"0000000000"), "edited"),
    "an own line": (lambda ls: [*ls[:3], b'{"event":"decision"}\n', *ls[3:]], "not a line"),
    "garbage": (lambda ls: [*ls[:3], b"\xff\x00\n", *ls[3:]], "not a line"),
    "added behind": (lambda ls: [*ls, b"x\n"], "not a line"),
    "half added behind": (lambda ls: [*ls, b"x"], "goes on after its end"),
}


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("which", [0, 1, -1])
def test_changed_lines(folder: Path, kind: str, which: int) -> None:
    change, says = LINES[kind]
    path = gate_files(folder)[which]
    if which == -1 and len(path.read_bytes().splitlines()) < 6:
        path = gate_files(folder)[-2]
    edit(path, change)
    verdict = look(folder)
    assert verdict.exit_code == Kind.TAMPERED
    tampered = [f for f in verdict.findings if f.kind is Kind.TAMPERED and f.file == path.name]
    assert any(says in f.text for f in tampered), tampered


def forged(folder: Path) -> None:
    path = gate_files(folder)[0]
    lines = path.read_bytes().splitlines()
    previous, out = chain.GENESIS, b""
    for raw in lines:
        record = json.loads(raw)
        record.pop("mac")
        line, previous = chain.seal({**record, "department": "svc"}, previous, b"x" * 32)
        out += line
    path.write_bytes(out)


def roll_back(folder: Path) -> None:
    """An older state of a file, with the head that belonged to it."""
    path = gate_files(folder)[0]
    lines = path.read_bytes().splitlines(keepends=True)[:-2]
    path.write_bytes(b"".join(lines))
    head_path = path.with_suffix(chain.HEAD_SUFFIX)
    head = chain.Head.unseal(head_path.read_bytes(), KEY)
    last = json.loads(lines[-1])
    # As the writer itself would have left it when it stood there.
    older = chain.Head(
        head.file, last["seq"], last["mac"], path.stat().st_size, "closed", "none", 1, "1"
    )
    head_path.write_bytes(older.seal(KEY))


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "file removed": (lambda f: gate_files(f)[1].unlink(), "the file is missing"),
    "newest removed": (lambda f: gate_files(f)[-1].unlink(), "the file is missing"),
    "file and head removed": (
        lambda f: [p.unlink() for p in f.glob(gate_files(f)[0].stem + "*")] and None,
        "the file is missing",
    ),
    "head removed": (
        lambda f: gate_files(f)[0].with_suffix(".head").unlink(),
        "its checkpoint is missing",
    ),
    "head edited": (
        lambda f: edit(
            gate_files(f)[0].with_suffix(".head"), lambda ls: replaced(ls, 0, b"closed", b"opened")
        ),
        "a checkpoint that is not ours",
    ),
    "heads swapped": (
        lambda f: (
            gate_files(f)[0]
            .with_suffix(".head")
            .write_bytes(gate_files(f)[1].with_suffix(".head").read_bytes())
            and None
        ),
        "it is the checkpoint of",
    ),
    "files swapped": (
        lambda f: (
            [
                gate_files(f)[0].rename(f / "x"),
                gate_files(f)[0].rename(gate_files(f)[0].with_name(gate_files(f)[0].name)),
            ]
            and (f / "x").rename(gate_files(f)[-1])
            and None
        ),
        "the file is missing",
    ),
    "another key": (forged, "the line was edited"),
    "rolled back": (roll_back, "it is not as it was when"),
}


@pytest.mark.parametrize("kind", FILES)
def test_changed_files(folder: Path, kind: str) -> None:
    change, says = FILES[kind]
    change(folder)
    verdict = look(folder)
    assert verdict.exit_code == Kind.TAMPERED
    assert any(says in f.text for f in verdict.findings if f.kind is Kind.TAMPERED), [
        str(f) for f in verdict.findings
    ]


def test_what_retention_removed_is_no_tampering(tmp_path: Path) -> None:
    gate = writer(tmp_path, max_bytes=4096, keep=2)
    for n in range(80):
        gate.write(decision(f"u{n}", allowed=False))
    gate.close()
    assert len(gate_files(tmp_path)) == 2
    assert look(tmp_path).exit_code == 0


def test_decisions_and_ends(tmp_path: Path) -> None:
    gate, engine = writer(tmp_path), writer(tmp_path, "vllm_lora")
    for uid in ("whole", "lost", "cancelled", "other"):
        gate.write(decision(uid))
    gate.write(decision("", allowed=False))
    engine.write(completion("whole"))
    engine.write({"event": "cancel", "uid": "cancelled", "outcome": "ok"})
    engine.write(completion("other", department="svc"))
    engine.write(completion("stolen"))
    engine.write({"event": "engine_refusal", "outcome": "unauthenticated"})
    gate.close()
    engine.close()
    verdict = look(tmp_path)
    assert verdict.exit_code == Kind.GAP
    texts = [f.text for f in verdict.findings]
    assert [t.split(":")[0].split(" for ")[0] for t in texts] == [
        "an allowed decision without a completion",
        "a completion without a decision of the gate",
        "completed",
    ]
    early = look(tmp_path, now_s=NOW + 50)
    assert early.under_way == 1
    assert not any("without a completion" in f.text for f in early.findings)


KILLED = """
import sys, time
from pathlib import Path
from python_backend.access_settings import AuditSettings
from python_backend.audit.writer import Writer
w = Writer(Path(sys.argv[1]), "lora_gate", bytes(range(32)), AuditSettings(sync=sys.argv[2]))
n = 0
while True:
    w.write({"event": "x", "n": n})
    n += 1
    if n == 50: print("go", flush=True)
    # Slower than any reader, who else would follow it into the next file.
    if n >= 50: time.sleep(0.0005)
"""


@pytest.mark.parametrize("sync", ["line", "interval", "none"])
def test_a_kill_is_told_from_tampering(tmp_path: Path, sync: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), sync],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    running = look(tmp_path)
    assert running.exit_code == 0
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    verdict = look(tmp_path)
    assert verdict.exit_code == 0, [str(f) for f in verdict.findings]
    (note,) = verdict.findings
    assert note.kind is Kind.NOTE and note.text.startswith(TRUNCATED)
    (path,) = gate_files(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"seq":')
    (note,) = look(tmp_path).findings
    assert "half of one" in note.text
    head = retention.heads(tmp_path, KEY)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: head.seq - 1]))
    assert look(tmp_path).exit_code == Kind.TAMPERED
