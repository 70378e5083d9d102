from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.access_settings import AuditSettings
from python_backend.audit import chain, retention
from python_backend.audit.chain import ChainError, Head, safe_text
from python_backend.audit.writer import AuditError, Writer, open_writer

KEY = bytes(range(32))
ROOT = Path(__file__).resolve().parents[3]


def make(folder: Path, **settings: Any) -> Writer:
    return Writer(folder, "lora_gate", KEY, AuditSettings(**settings))


def records(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in retention.files(folder)
        for line in path.read_bytes().split(b"\n")[:-1]
    ]


@pytest.mark.parametrize("sync", ["line", "interval", "none"])
def test_lines_in_order_with_a_closing_head(tmp_path: Path, sync: str) -> None:
    writer = make(tmp_path / "audit", sync=sync)
    for n in range(3):
        writer.write({"event": "x", "n": n})
    writer.close()
    writer.close()
    first, *rest = records(tmp_path / "audit")
    assert (first["event"], first["seq"], first["file"]) == ("open", 1, writer.path.name)
    assert [(r["seq"], r["n"]) for r in rest] == [(2, 0), (3, 1), (4, 2)]
    (head,) = retention.heads(tmp_path / "audit", KEY)
    assert (head.seq, head.state, head.mac) == (4, "closed", rest[-1]["mac"])
    assert head.size == writer.path.stat().st_size
    assert writer.path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    with pytest.raises(AuditError, match="closed"):
        writer.write({"event": "late"})


def test_a_synced_line_has_its_checkpoint_at_once(tmp_path: Path) -> None:
    writer = make(tmp_path, sync="line")
    writer.write({"event": "x"})
    assert retention.heads(tmp_path, KEY)[0].seq == 2
    writer.close()


def test_the_other_modes_have_theirs_soon(tmp_path: Path) -> None:
    writer = make(tmp_path, sync="interval")
    writer.write({"event": "x"})
    assert retention.heads(tmp_path, KEY)[0].seq == 1
    writer.checkpoint()
    assert retention.heads(tmp_path, KEY)[0].seq == 2
    writer.close()


def test_threads_share_one_chain(tmp_path: Path) -> None:
    writer = make(tmp_path, sync="none", max_bytes=4096, keep=1000)

    def work() -> None:
        for n in range(200):
            writer.write({"event": "x", "n": n})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    found = records(tmp_path)
    assert [r["seq"] for r in found] == list(range(1, len(found) + 1))
    assert sum(r["event"] == "x" for r in found) == 800


def test_rotation_chains_files_and_leaves_tombstones(tmp_path: Path) -> None:
    writer = make(tmp_path, sync="none", max_bytes=4096, keep=2)
    for n in range(100):
        writer.write({"event": "x", "text": "y" * 200, "n": n})
    writer.close()
    files = retention.files(tmp_path)
    assert len(files) == 2
    heads = retention.heads(tmp_path, KEY)
    assert [h.state for h in heads[-2:]] == ["closed", "closed"]
    assert {h.state for h in heads[:-2]} == {"removed"}
    first = json.loads(files[-1].read_bytes().split(b"\n")[0])
    assert first["previous"] == files[-2].name
    assert first["previous_mac"] == heads[-2].mac
    assert files[-2].name in first["files"]


def test_files_in_use_are_kept(tmp_path: Path) -> None:
    one = make(tmp_path, sync="none", max_bytes=4096, keep=2)
    two = make(tmp_path, sync="none", max_bytes=4096, keep=2)
    for n in range(100):
        two.write({"event": "x", "text": "y" * 200, "n": n})
    assert one.path.exists()
    one.write({"event": "x"})
    one.close()
    two.close()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(5, "I/O error")])
def test_what_cannot_be_written_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    writer = make(tmp_path, sync="none")
    writer.write({"event": "x", "n": 0})
    real = os.write

    def half(fd: int, data: bytes) -> int:
        real(fd, data[: len(data) // 2])
        raise error

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(AuditError, match=str(error.strerror)):
        writer.write({"event": "x", "n": 1})
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
    with pytest.raises(AuditError, match="no space"):
        writer.write({"event": "x", "n": 2})
    monkeypatch.setattr(os, "write", real)
    writer.write({"event": "x", "n": 3})
    writer.close()
    assert [r.get("n") for r in records(tmp_path)] == [None, 0, 3]
    assert [r["seq"] for r in records(tmp_path)] == [1, 2, 3]


def test_a_real_limit_on_the_file_size(tmp_path: Path) -> None:
    code = """
import sys, resource
from pathlib import Path
from python_backend.access_settings import AuditSettings
from python_backend.audit.writer import AuditError, Writer
writer = Writer(Path(sys.argv[1]), "lora_gate", bytes(range(32)), AuditSettings(sync="none"))
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
written = 0
try:
    for _ in range(100):
        writer.write({"event": "x", "text": "y" * 100})
        written += 1
except AuditError as error:
    print(written, "File too large" in str(error) or "no space" in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write({"event": "y"})
writer.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    written, told = done.stdout.split()
    assert told == "True"
    assert [r["event"] for r in records(tmp_path)] == ["open", *["x"] * int(written), "y"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match=r"Not a directory|File exists"):
        make(tmp_path / "file")


def test_a_file_removed_under_the_writer_is_followed_by_another(tmp_path: Path) -> None:
    writer = make(tmp_path, sync="none")
    gone = writer.path
    gone.unlink()
    writer.checkpoint()
    writer.write({"event": "x"})
    writer.close()
    assert writer.path != gone and writer.path.exists()


def test_switched_off(tmp_path: Path) -> None:
    assert open_writer(tmp_path / "audit", "x", AuditSettings(enabled=False)) is None
    assert not (tmp_path / "audit").exists()


def test_open_writer_makes_the_key(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "audit", "lora_gate", AuditSettings(sync="none"))
    assert writer is not None
    writer.close()
    assert (tmp_path / "audit" / chain.KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_line_costs_little(tmp_path: Path) -> None:
    """20 µs is the bound at rest; four times that for a machine that others use too."""
    writer = make(tmp_path, sync="none")
    record = {"event": "decision", **{f"field{n}": "x" * 30 for n in range(12)}}
    took = []
    for _ in range(3000):
        began = time.perf_counter_ns()
        writer.write(record)
        took.append(time.perf_counter_ns() - began)
    writer.close()
    assert sorted(took)[len(took) // 2] < 80_000


EVIL = st.one_of(
    st.binary(max_size=60),
    st.text(st.characters(exclude_categories=()), max_size=60),
    st.sampled_from(
        ['\n{"event":"allow"}', "\x1b[2J", "\u2028", "\ud800", "a" * 1_000_000, "\x7f", "\x85"]
    ),
    st.integers(),
)


@given(EVIL)
def test_whatever_comes_is_one_line_and_short(value: Any) -> None:
    text = safe_text(value)
    assert (len(text) <= chain.MAX_TEXT and text.isascii() and text.isprintable()) or text == ""
    line, mac = chain.seal({"seq": 1, "raw": str(value)[:200], "asked": text}, chain.GENESIS, KEY)
    assert line.count(b"\n") == 1 and line.isascii() and len(line.splitlines()) == 1
    read = chain.unseal(line[:-1], chain.GENESIS, KEY)
    assert read.good and read.mac == mac
    assert read.record["asked"] == text


@given(st.binary(max_size=200))
def test_reading_garbage_raises_one_error_only(data: bytes) -> None:
    with pytest.raises(ChainError):
        chain.unseal(data, chain.GENESIS, KEY)
    with pytest.raises(ChainError):
        Head.unseal(data, KEY)


def test_heads_of_another_key_are_refused() -> None:
    head = Head("f", 1, "m", 2, "open", "none", 3, "s")
    assert Head.unseal(head.seal(KEY), KEY) == head
    with pytest.raises(ChainError):
        Head.unseal(head.seal(bytes(32)), KEY)
