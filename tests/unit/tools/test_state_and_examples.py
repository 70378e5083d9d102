from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from tools.serving import examples
from tools.serving.problem import ServeProblem
from tools.serving.state import StateDirectory


def test_the_admin_key_is_fresh_and_private(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    first, second = state.new_admin_key(), state.new_admin_key()
    file = state.run / "triton-admin.key"
    assert first != second and file.read_text().strip() == second
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.run.stat().st_mode) == 0o700


def test_two_servers_cannot_share_a_state_directory(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path)
    with pytest.raises(ServeProblem, match="--state-dir"):
        StateDirectory(tmp_path)
    assert first.run.is_dir()


def test_each_start_has_its_own_prefix(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    assert state.new_shm_prefix() != state.new_shm_prefix()


def test_a_state_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServeProblem, match="--state-dir"):
        StateDirectory(tmp_path / "file")


def test_the_calls_run_in_a_shell_and_show_no_key(tmp_path: Path) -> None:
    keys = tmp_path / "with space" / "keys.json"
    keys.parent.mkdir()
    keys.write_text(json.dumps({"fin": "KEY-fin", "svc": "KEY-svc", "qa": "KEY-qa"}))
    # A curl that prints its last argument, the body.
    curl = tmp_path / "bin" / "curl"
    curl.parent.mkdir()
    curl.write_text('#!/bin/sh\nfor last; do :; done\nprintf "%s" "$last"\n')
    curl.chmod(0o755)
    env = {**os.environ, "PATH": f"{curl.parent}{os.pathsep}{os.environ['PATH']}"}
    bodies = []
    for call in examples.calls("127.0.0.1:8000", keys):
        assert "KEY-" not in call and "\n" not in call
        done = subprocess.run(
            ["sh", "-c", call], env=env, capture_output=True, text=True, check=True
        )
        bodies.append(json.loads(done.stdout))
    generate, stream, infer = bodies
    assert generate["credential"] == "KEY-fin"
    assert json.loads(generate["messages"])[0]["role"] == "user"
    assert stream["credential"] == "KEY-svc" and stream["stream"] is True
    assert {t["name"]: t["data"][0] for t in infer["inputs"]}["credential"] == "KEY-qa"
