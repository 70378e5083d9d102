"""A server of a benchmark's own: started by ``tools serve``, stopped at the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton
import yaml

from tools import layout
from tools.serving.process import end_with_parent

START_LIMIT_S = 300.0


def text(name: str, value: str) -> Any:
    """A model's input of one string."""
    tensor = triton.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([value.encode()], dtype=object))
    return tensor


def engine_settings(demo: Path) -> dict[str, Any]:
    """The demo's engine arguments, the model by its whole path."""
    found = yaml.safe_load((demo / "serving.yaml").read_text("utf-8"))["engine"]
    return {**found, "model": str((demo / found["model"]).resolve())}


class RunningServer:
    """A ready server.

    Args:
        demo: the folder of its configuration and keys.
        state: its state folder.
        ports: HTTP, gRPC, metrics.
        process: ``tools serve``.
        start_s: seconds from its start to its ready line.
    """

    def __init__(
        self,
        demo: Path,
        state: Path,
        ports: tuple[int, int, int],
        process: subprocess.Popen[str],
        start_s: float,
    ) -> None:
        self._state, self._process, self.start_s = state, process, start_s
        self.http, self.grpc, self.metrics = (f"127.0.0.1:{port}" for port in ports)
        self.keys: dict[str, str] = json.loads((demo / "keys.json").read_text())
        self.markers: dict[str, str] = json.loads((demo / "markers.json").read_text())

    @property
    def pid(self) -> int:
        """Process id of ``tools serve``, above all that the server is."""
        return self._process.pid

    @property
    def state(self) -> Path:
        """Its state folder, with its log."""
        return self._state

    def cpu_s(self) -> float:
        """Processor time that all its processes have used so far, seconds."""
        return cpu_s(self._process.pid)

    def memory_mib(self) -> list[tuple[str, float]]:
        """Resident memory of each process of the server, MiB, largest first."""
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found.append((role(child), child.memory_info().rss / 2**20))
        return sorted(found, key=lambda pair: -pair[1])

    def ready_line(self) -> str:
        """The engine's own account of its start-up, from the log."""
        log = (self._state / "logs" / "tritonserver.log").read_text(errors="replace")
        lines = re.findall(r"ready: vLLM [^\"\n]*", log)
        return lines[-1] if lines else "no account in the log"


def cpu_s(pid: int) -> float:
    """Processor time that a process and all below it have used so far, seconds."""
    root, used = psutil.Process(pid), 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def role(process: psutil.Process) -> str:
    """What a process of a server is: ``stub of <model>``, or its program's name."""
    words = process.cmdline()
    models = [Path(word).parts[-3] for word in words if word.endswith("/model.py")]
    return f"stub of {models[0]}" if models else Path(words[0]).name if words else process.name()


def free_ports() -> tuple[int, int, int]:
    """Three ports on loopback that nobody has now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        http, grpc, metrics = (one.getsockname()[1] for one in sockets)
        return http, grpc, metrics


@contextlib.contextmanager
def running(
    demo: Path,
    folder: Path,
    config: str = "serving.yaml",
    *,
    flags: Sequence[str] = (),
    around: Callable[[list[str]], list[str]] = lambda command: command,
) -> Iterator[RunningServer]:
    """A server on free ports with the configuration of ``demo`` and its state in ``folder``.

    Args:
        config: the file of settings in ``demo``.
        flags: more of ``tools serve``.
        around: makes the command that starts it of its own, in a namespace perhaps.

    Raises:
        RuntimeError: it does not become ready; the text holds what it said.
    """
    ports = free_ports()
    command = [sys.executable, "-m", "tools", "serve", "--config", str(demo / config)]
    command += ["--state-dir", str(folder / "state"), "--http-port", str(ports[0])]
    command += ["--grpc-port", str(ports[1]), "--metrics-port", str(ports[2]), *flags]
    command = around(command)
    began = time.monotonic()
    with (folder / "serve.log").open("w+") as said:
        process = subprocess.Popen(  # noqa: S603
            command,
            cwd=layout.ROOT,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=os.environ,
            preexec_fn=end_with_parent,
        )
        try:
            if not _becomes_ready(process, began + START_LIMIT_S):
                said.seek(0)
                raise RuntimeError(f"the server did not start: {said.read()[-2000:]}")
            took = time.monotonic() - began
            yield RunningServer(demo, folder / "state", ports, process, took)
        finally:
            process.terminate()
            process.wait(timeout=60)


def _becomes_ready(process: subprocess.Popen[str], deadline_s: float) -> bool:
    output = process.stdout
    while output is not None and time.monotonic() < deadline_s:
        if select.select([output], [], [], 0.5)[0]:
            line = output.readline()
            if line.startswith("ready ") or not line:
                return bool(line)
    return False
