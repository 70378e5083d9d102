"""A real tritonserver with the real model, as its operator would start it."""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from python_backend.metrics import WRITE_EVERY_S
from tests.server.client import Client
from tests.server.shapes import Refused

ROOT = Path(__file__).resolve().parents[2]
SHM = Path("/dev/shm")
START_LIMIT_S = 180.0
STOP_LIMIT_S = 30.0
TAIL_LINES = 50


class Server:
    """A server that is ready, and what a test has to know about it."""

    def __init__(self, demo: Path, state: Path, ports: tuple[int, int, int]) -> None:
        self.demo, self.state, self.ports = demo, state, ports
        self.keys = keys(demo)
        #: lora_id of each marker adapter and the word it says.
        self.markers: dict[str, str] = json.loads((demo / "markers.json").read_text())
        self.log = state / "logs" / "tritonserver.log"
        self.client = self.new_client()

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    @property
    def ticket_key(self) -> bytes:
        """The key a thief of the runtime directory would have."""
        return (self.state / "run" / "ticket.key").read_bytes()

    @property
    def admin_key(self) -> str:
        """The key of the restricted Triton APIs."""
        return (self.state / "run" / "triton-admin.key").read_text().strip()

    def new_client(self, who: str = "admin") -> Client:
        """A client with connections of its own, speaking as one of ``keys.json``."""
        return Client(self.http, self.grpc, self.keys[who])

    def metrics_text(self) -> str:
        """What the metrics endpoint says of all that has happened until now."""
        # Written twice by then: what came while one write went on waits for the next.
        time.sleep(2 * WRITE_EVERY_S)
        return httpx.get(f"http://127.0.0.1:{self.ports[2]}/metrics", timeout=10).text

    def tail(self, lines: int = TAIL_LINES) -> str:
        return tail(self.log, lines)

    def log_mark(self) -> int:
        """Where the log ends now, for ``log_since``."""
        return self.log.stat().st_size

    def log_since(self, mark: int) -> str:
        with self.log.open("rb") as file:
            file.seek(mark)
            return file.read().decode(errors="replace")

    def wait_for_log(self, text: str, mark: int, count: int = 1, limit_s: float = 10.0) -> float:
        """Seconds until ``text`` stands ``count`` times in the log behind ``mark``."""
        began = time.monotonic()
        while self.log_since(mark).count(text) < count:
            waited = time.monotonic() - began
            seen = self.log_since(mark).count(text)
            assert waited < limit_s, f"{text!r} {seen} of {count} times within {limit_s} s"
            time.sleep(0.02)
        return time.monotonic() - began

    def gives_nothing_away(self, refused: Refused) -> None:
        """An error repeats no key, path, trace or name that its reader might not know."""
        text = refused.message
        hidden = [*self.keys.values(), str(self.demo), str(self.state), "/dev/shm", ".py"]
        hidden += [*self.markers, "fin_risk_v1", "svc_chat_v1", "Traceback", "lora_serving_"]
        assert not [secret for secret in hidden if secret in text], text
        assert len(text) < 400


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"no log: {error.strerror}"


def keys(demo: Path) -> dict[str, str]:
    """The API key of each principal of a demo folder."""
    found: dict[str, str] = json.loads((demo / "keys.json").read_text())
    return found


def free_ports() -> tuple[int, int, int]:
    """Three ports that nobody uses, all held until all are chosen."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        http, grpc, metrics = (sock.getsockname()[1] for sock in sockets)
        return http, grpc, metrics


def make_demo(out: Path, markers: int = 8) -> None:
    """A demo folder of its own, with fresh keys; the converted model is cached.

    Without the canary: tests count what they have asked for.
    """
    tools("demo", "--out", str(out), "--markers", str(markers))
    with (out / "serving.yaml").open("a", encoding="utf-8") as file:
        file.write("\nobservation: {canary_s: 0}\n")


def tools(*arguments: str) -> None:
    """Runs ``python -m tools`` to its end; its output is shown if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tools", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=START_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"tools {' '.join(arguments)}:\n{done.stdout}{done.stderr}"


@contextlib.contextmanager
def running(demo: Path, state: Path) -> Iterator[Server]:
    """A server by ``tools serve``, from its ready line to a clean end."""
    ports = free_ports()
    flags = zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, ports), strict=True)
    command = [sys.executable, "-m", "tools", "serve"]
    command += ["--config", str(demo / "serving.yaml"), "--state-dir", str(state)]
    command += [word for pair in flags for word in pair]
    output = state.parent / f"{state.name}-serve.err"
    with output.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        ready = _wait_for_ready(process, output, state)
        addresses = tuple(int(n) for n in re.findall(r"=127\.0\.0\.1:(\d+)", ready))
        assert addresses == ports, ready
        server = Server(demo, state, ports)
        yield server
        server.client.close()
        assert process.poll() is None, f"the server died:\n{server.tail()}"
        prefix = (state / "run" / "shm-prefix").read_text().strip()
        assert regions(prefix), "the server's shared memory is not where the test looks for it"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=STOP_LIMIT_S)
        took = time.monotonic() - began
        assert code == 0, output.read_text()
        assert took < STOP_LIMIT_S
        assert regions(prefix) == []
        assert "killed" not in output.read_text()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def regions(prefix: str) -> list[str]:
    """What of /dev/shm is a server's."""
    return sorted(path.name for path in SHM.iterdir() if path.name.startswith(prefix))


def _wait_for_ready(process: subprocess.Popen[str], output: Path, state: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + START_LIMIT_S
    log = state / "logs" / "tritonserver.log"
    while time.monotonic() < deadline:
        if select.select([process.stdout], [], [], 0.2)[0]:
            line = process.stdout.readline()
            if line.startswith("ready "):
                return line
            if not line:
                break
    raise AssertionError(
        f"no ready line (exit code {process.poll()}):\n{output.read_text()}\n{tail(log)}"
    )
