from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from python_backend import runtime
from python_backend.runtime import RuntimeDirError, boot_id, process_start, ticket_key


def test_the_first_writer_wins_and_all_read_the_same(tmp_path: Path) -> None:
    run = tmp_path / "state" / "run"
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: ticket_key(run), range(64)))
    assert len(keys) == 1
    assert len(keys.pop()) == 32
    assert [path.name for path in run.iterdir()] == ["ticket.key"]
    assert (run / "ticket.key").stat().st_mode & 0o777 == 0o600
    assert run.stat().st_mode & 0o777 == 0o700
    assert ticket_key(tmp_path / "other") != ticket_key(run)


@pytest.mark.parametrize("damage", ["short", "readable"])
def test_a_key_file_that_is_not_ours_is_refused(tmp_path: Path, damage: str) -> None:
    ticket_key(tmp_path)
    path = tmp_path / "ticket.key"
    if damage == "short":
        path.write_bytes(b"x")
    else:
        path.chmod(0o644)
    with pytest.raises(RuntimeDirError, match="remove it and restart"):
        ticket_key(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeDirError, match="give the server its own state dir"):
        ticket_key(tmp_path / "file" / "run")


def test_process_start_names_a_living_process() -> None:
    start = process_start(os.getpid())
    assert start is not None and start.isdigit()
    assert process_start(2**22 + 1) is None


def test_a_dead_child_has_no_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert process_start(child.pid) is not None
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now, not yet reaped
    assert process_start(child.pid) is None
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    assert process_start(child.pid) is None


def test_boot_id_is_one_per_server() -> None:
    assert boot_id() == boot_id(os.getppid())
    assert boot_id(os.getpid()) != boot_id()
    assert len(boot_id()) == 32
    out = subprocess.run(
        [sys.executable, "-c", "from python_backend import runtime; print(runtime.boot_id())"],
        capture_output=True,
        check=True,
        text=True,
        cwd=Path(runtime.__file__).parents[1],
    )
    assert out.stdout.strip() == boot_id(os.getpid())
