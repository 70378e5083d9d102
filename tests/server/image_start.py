"""A server started as the image starts it: by its entry point, which becomes tritonserver."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server import harness
from tests.server.harness import ROOT, START_LIMIT_S, STOP_LIMIT_S, Server
from tools.serving.problem import ServeProblem
from tools.serving.process import session_members
from tools.serving.state import StateDirectory

SCRIPT = ROOT / "deploy" / "image" / "entrypoint.sh"


@contextlib.contextmanager
def running(demo: Path, state: Path) -> Iterator[Server]:
    """A server by the entry point, from ready to an end by SIGTERM; nothing of it is left then."""
    ports = harness.free_ports()
    names = ("--http-port", "--grpc-port", "--metrics-port")
    flags = [f"{name}={port}" for name, port in zip(names, ports, strict=True)]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LORA_SERVING_CONFIG": str(demo / "serving.yaml"),
        "LORA_STATE_DIR": str(state),
    }
    log = state.parent / "image.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["/bin/sh", str(SCRIPT), "--host=127.0.0.1", *flags],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = Server(demo, state, ports)
        server.log = log
        _wait_until_ready(server, process)
        assert " ok, " in log.read_text(errors="replace"), "the checks left no count"
        # The very process that was started: what stops a container reaches tritonserver itself.
        assert Path(f"/proc/{process.pid}/exe").resolve().name == "tritonserver"
        with pytest.raises(ServeProblem, match="already uses"):
            StateDirectory(state)
        yield server
        health = ["health", f"--state-dir={state}", flags[0], flags[2]]
        harness.tools(*health)
        harness.tools(*health, "--idle-within=30")
        server.client.close()
        prefix = (state / "run" / "shm-prefix").read_text().strip()
        assert harness.regions(prefix), "its shared memory is not where the test looks for it"
        process.terminate()
        assert process.wait(STOP_LIMIT_S) == 0, server.tail()
        assert harness.regions(prefix) == []
        assert "Traceback" not in log.read_text(errors="replace")
    finally:
        for pid in {process.pid, *session_members(process.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if server.client.http.get("/v2/health/ready").status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"not ready (exit code {process.poll()}):\n{server.tail()}")
