"""The server's process, with a shell in place of tritonserver."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
import time
from pathlib import Path

import pytest

from tools import layout
from tools.serving import process, shm
from tools.serving.process import ServerProcess, session_members
from tools.tritonserver import Launch


def started(script: str, tmp_path: Path, prefix: str = "") -> ServerProcess:
    log = tmp_path / "log"
    launch = Launch(Path("/bin/sh"), os.environ, ())
    process = ServerProcess(launch, ["-c", f"{script}\necho up\nwait"], log, prefix)
    while "up" not in log.read_text():
        assert process.exit_code() is None
        time.sleep(0.01)
    return process


def test_stop_in_order(tmp_path: Path) -> None:
    server = started("trap 'exit 0' TERM; sleep 60 &", tmp_path)
    assert server.stop()
    assert session_members(server.pid) == []


def test_what_ignores_the_request_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.serving.process.ORPHANS_S", 0.2)
    # A child in a process group of its own, deaf to SIGTERM.
    server = started("trap 'exit 0' TERM; (trap '' TERM; set -m; sleep 60 & wait) &", tmp_path)
    assert not server.stop()
    assert session_members(server.pid) == []


def test_the_models_find_our_packages_wherever_serve_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = started("pwd", tmp_path)
    server.stop(hurry=lambda: True)
    assert Path((tmp_path / "log").read_text().split()[0]) == layout.ROOT


def test_hurry_kills_at_once(tmp_path: Path) -> None:
    server = started("trap '' TERM; sleep 60 &", tmp_path)
    began = time.monotonic()
    assert not server.stop(hurry=lambda: True)
    assert time.monotonic() - began < 5
    assert session_members(server.pid) == []


def test_only_our_regions_go(tmp_path: Path) -> None:
    prefix = f"lora_test_{secrets.token_hex(6)}_"
    other = shm.SHM / f"other_{prefix}"
    other.touch()
    try:
        server = started(
            f"trap 'exit 0' TERM; touch /dev/shm/{prefix}1; sleep 60 &", tmp_path, prefix
        )
        assert shm.with_prefix(prefix)
        server.stop()
        assert not shm.with_prefix(prefix)
        assert other.exists()
    finally:
        other.unlink()


def test_semaphores_of_killed_processes_go_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Starting Python takes its time on a busy machine, and the tracker has only just started.
    monkeypatch.setattr("tools.serving.process.TRACKERS_S", 20.0)
    script = (
        "import multiprocessing as m, time; lock = m.get_context('spawn').Lock();"
        "print('name', lock._semlock.name, flush=True); time.sleep(60)"
    )
    server = started(f"trap '' TERM; {sys.executable} -c {shlex.quote(script)} &", tmp_path)
    until = time.monotonic() + 30
    while not (names := re.findall(r"name /(\S+)\n", (tmp_path / "log").read_text())):
        assert time.monotonic() < until
        time.sleep(0.05)
    (name,) = names
    semaphore = shm.SHM / f"sem.{name}"
    assert semaphore.exists()
    while not any(process._is_tracker(pid) for pid in session_members(server.pid)):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not server.stop(hurry=lambda: True)
    assert session_members(server.pid) == []
    assert not semaphore.exists()
