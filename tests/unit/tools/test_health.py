"""Who asks finds a server that lives, and one of which a part has gone."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from python_backend import presence, runtime
from python_backend.ticket import boottime_ns
from tools.__main__ import app
from tools.health import ill
from tools.serving.state import StateDirectory


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers as tritonserver does; ``metrics`` are handed out one after the other."""

    metrics: list[str]

    def do_GET(self) -> None:
        found = self.path in {"/v2/health/live", "/metrics"}
        self.send_response(200 if found else 404)
        self.end_headers()
        if self.path == "/metrics":
            pages = type(self).metrics
            self.wfile.write((pages.pop(0) if len(pages) > 1 else pages[0]).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    state = StateDirectory(tmp_path / "state")
    state.note_server(os.getpid())
    return state


def record(state: StateDirectory, pid: int, start: str, **more: bool | str) -> None:
    """What the process of lora_gate leaves; ``start`` is when its process began."""
    ours = presence.Record("lora_gate", runtime.boot_id(os.getpid()), pid, start)
    (path := state.run / presence.FOLDER).mkdir(exist_ok=True)
    fields = {**vars(ours), **more}
    (path / f"lora_gate-{pid}.json").write_text(json.dumps(fields))
    now = boottime_ns()
    os.utime(path / f"lora_gate-{pid}.json", ns=(now, now))


def test_a_server_whose_processes_live(state: StateDirectory, port: int) -> None:
    record(state, os.getpid(), runtime.process_start(os.getpid()) or "")
    assert ill(state.path, f"http://127.0.0.1:{port}") is None


def test_a_process_that_has_died(state: StateDirectory, port: int) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    start = runtime.process_start(gone.pid) or ""
    gone.wait()
    record(state, gone.pid, start)
    assert ill(state.path, f"http://127.0.0.1:{port}") == (
        f"the process of lora_gate (pid {gone.pid}) has died"
    )


def closed_port() -> int:
    """A port that nobody listens on."""
    with http.server.HTTPServer(("127.0.0.1", 0), Pages) as server:
        return server.server_port


def test_nobody_answers(state: StateDirectory) -> None:
    assert "refused" in (ill(state.path, f"http://127.0.0.1:{closed_port()}") or "")


def test_another_state_directory(port: int, tmp_path: Path) -> None:
    assert "--state-dir" in (ill(tmp_path, f"http://127.0.0.1:{port}") or "")


BUSY = 'lora_queue_depth{model="vllm_lora",department="fin"} 2\n'
RUNNING = 'lora_requests_in_engine{model="vllm_lora",department="fin"} 1\n'
IDLE = 'lora_queue_depth{department="fin"} 0\nlora_requests_in_engine{department="fin"} 0\n'


def command(port: int, *arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["health", f"--metrics-port={port}", *arguments])
    return found.exit_code, found.stderr


def test_it_waits_until_nothing_waits_or_runs(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.health.LOOK_EVERY_S", 0.01)
    # Idle between two requests is not idle yet.
    Pages.metrics = [BUSY, RUNNING, IDLE, RUNNING, IDLE, IDLE, BUSY]
    assert command(port, "--idle-within=60") == (0, "")
    assert Pages.metrics == [BUSY]


def test_it_does_not_wait_for_ever(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.health.LOOK_EVERY_S", 0.01)
    Pages.metrics = [BUSY]
    assert command(port, "--idle-within=0") == (1, "2 still under way after 0 s\n")


def test_metrics_that_cannot_be_read() -> None:
    code, said = command(closed_port(), "--idle-within=5")
    assert code == 1 and said.startswith("the metrics cannot be read: ")
