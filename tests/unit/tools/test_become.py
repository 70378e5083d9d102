"""``tools serve --exec``, with a script in place of tritonserver."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from python_backend import presence, runtime
from tests.server.harness import free_ports
from tools import layout
from tools.__main__ import app
from tools.serving.problem import ServeProblem
from tools.serving.state import PID_FILE, StateDirectory

#: Says who it is, which signals it ignores, and what it was given; ends in order when asked to.
SERVER = """#!/bin/bash
trap 'exit 7' TERM
ignored=$(grep SigIgn /proc/$$/status | cut -f2)
echo $$ $ignored $PWD $LORA_SERVING_CONFIG "$@"
while true; do sleep 0.1; done
"""


@pytest.fixture
def started(tmp_path: Path) -> subprocess.Popen[str]:
    binary = tmp_path / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.write_text(SERVER)
    binary.chmod(0o755)
    (tmp_path / "serving.yaml").touch()
    names = ("--http-port", "--grpc-port", "--metrics-port")
    ports = [f"{name}={port}" for name, port in zip(names, free_ports(), strict=True)]
    words = ["serve", "--exec", f"--config={tmp_path / 'serving.yaml'}", *ports]
    return subprocess.Popen(
        [sys.executable, "-m", "tools", *words, f"--state-dir={tmp_path / 'state'}"],
        cwd=layout.ROOT,
        env={**os.environ, "PATH": f"{binary.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "errors").open("w"),
        text=True,
    )


def test_it_becomes_the_server_and_keeps_its_claim(
    started: subprocess.Popen[str], tmp_path: Path
) -> None:
    try:
        assert started.stdout is not None
        pid, ignored, folder, config, *arguments = started.stdout.readline().split()
        assert int(pid) == started.pid
        assert folder == str(layout.ROOT)
        assert config == str(tmp_path / "serving.yaml")
        assert "--exit-on-error=true" in arguments
        state = tmp_path / "state"
        assert (state / "run" / PID_FILE).read_text().strip() == pid
        with pytest.raises(ServeProblem, match="already uses"):
            StateDirectory(state)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores both.
            assert not int(ignored, 16) & 1 << number - 1
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 7
        StateDirectory(state)
    finally:
        started.kill()
        started.wait()


def test_a_server_that_lost_a_part_is_ended(started: subprocess.Popen[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "state" / "run"
    try:
        assert started.stdout is not None
        started.stdout.readline()
        gone = presence.Record("lora_gate", runtime.boot_id(started.pid), 2**22 + 1, "0")
        record = run_dir / presence.FOLDER / "lora_gate-0.json"
        record.parent.mkdir(exist_ok=True)
        record.write_text(json.dumps(dataclasses.asdict(gone)))
        assert started.wait(30) == 7
        # Whoever waits at a door has been told.
        lost = presence.lost(run_dir, gone.boot_id, ["vllm_lora"])
        assert [loss.model for loss in lost] == [presence.SERVER]
    finally:
        started.kill()
        started.wait()
    assert "stopping: the process of lora_gate" in (tmp_path / "errors").read_text()


def test_what_has_become_the_server_restarts_nothing() -> None:
    done = CliRunner().invoke(app, ["serve", "--exec", "--restart"])
    assert done.exit_code == 2
    assert "--restart" in done.output
