"""A server under ``tools serve``, for tests that kill its parts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from tests.server import harness
from tests.server.client import Client, grpc_request
from tests.server.harness import Server
from tests.server.shapes import Refused, sampling
from tools.serving import process, shm
from tools.serving.process import session_members


class Supervised:
    """``tools serve`` and what it prints.

    Args:
        flags: more of its flags, such as ``--restart``.
    """

    def __init__(self, demo: Path, state: Path, *flags: str) -> None:
        self.state, self.demo = state, demo
        self.ports = harness.free_ports()
        names = ("--http-port", "--grpc-port", "--metrics-port")
        ports = [f"{name}={port}" for name, port in zip(names, self.ports, strict=True)]
        command = [sys.executable, "-m", "tools", "serve", *flags, *ports]
        command += [f"--config={demo / 'serving.yaml'}", f"--state-dir={state}"]
        self.errors = state.parent / f"{state.name}.err"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=harness.ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.prefixes: set[str] = set()
        self.regions: set[int] = set()
        self.sessions: set[int] = set()
        began = time.monotonic()
        self.wait_for("ready ", harness.START_LIMIT_S)
        self.start_s = time.monotonic() - began
        self.server = Server(demo, state, self.ports)
        self.note()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def wait_for(self, start: str, limit_s: float) -> str:
        """The next line of its output that begins so."""
        until = time.monotonic() + limit_s
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=min(left, 0.5))
                if line.startswith(start):
                    return line.strip()
            assert self.process.poll() is None, self.errors.read_text()
        raise AssertionError(
            f"no line {start!r} within {limit_s:.0f} s:\n{self.errors.read_text()}\n"
            + harness.tail(self.state / "logs" / "tritonserver.log")
        )

    @property
    def triton(self) -> int:
        """The process of tritonserver, which is also its session."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = map(int, children.read_text().split())
        return pid

    def pid(self, part: str) -> int:
        """The process of a model, ``tritonserver``, or vLLM's ``EngineCore``."""
        triton = self.triton
        found = triton if part == "tritonserver" else process.part(triton, part)
        assert found is not None, f"no process of {part}"
        return found

    def note(self) -> None:
        """Remembers what this life of the server would leave behind."""
        self.sessions.add(self.triton)
        self.prefixes.add((self.state / "run" / "shm-prefix").read_text().strip())
        mapped = _mapped(session_members(self.triton))
        assert len(mapped) > 4
        self.regions |= mapped

    def left(self) -> list[str]:
        """What is left of all its lives so far: regions of shared memory, and processes."""
        regions = {path for path in shm.SHM.iterdir() if path.lstat().st_ino in self.regions}
        for prefix in self.prefixes:
            regions |= shm.with_prefix(prefix)
        members = [pid for session in self.sessions for pid in session_members(session)]
        return sorted(path.name for path in regions) + [f"pid {pid}" for pid in members]

    def end(self) -> None:
        """Whatever has happened, nothing stays."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(harness.STOP_LIMIT_S)
        self.process.kill()
        self.process.wait()
        for session in self.sessions:
            for pid in session_members(session):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)


def _mapped(pids: list[int]) -> set[int]:
    """The inodes of all shared memory that these processes use.

    Not the names: a semaphore is mapped under the temporary one it was made with.
    """
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(f"{shm.SHM}/"):
                    found.add(int(fields[4]))
    return found


@dataclasses.dataclass
class Waiting:
    """A caller with a long request; ``how`` is the code it ended with, or Triton's status."""

    door: str
    flowing: threading.Event = dataclasses.field(default_factory=threading.Event)
    ended_s: float = 0.0
    how: str = ""
    message: str = ""

    def run(self, client: Client) -> None:
        try:
            self._call(client)
            self.how = "answered"
        except Refused as error:
            self.how, self.message = error.code or error.status, error.message
        except grpc.RpcError as error:
            self.how, self.message = error.code().name, str(error.details())
        finally:
            self.ended_s = time.monotonic()
            client.close()

    def _call(self, client: Client) -> None:
        long = sampling(max_tokens=900, ignore_eos=True)
        fields = {"text_input": "Tell me.", "sampling_parameters": long}
        if self.door == "lora_infer":
            self.flowing.set()
            client.infer_grpc(lora_id="mark_w0001_v1", **fields)
            return
        request = grpc_request(
            self.door, client._with_key({"stream": True, "lora_id": "mark_w0002_v1", **fields})
        )
        for message in client.stub.ModelStreamInfer(iter([request]), timeout=60):
            self.flowing.set()
            if message.error_message:
                raise Refused(message.error_message, "OK")


DOORS = ("lora_stream", "lora_stream", "lora_infer", "lora_generate")


@contextlib.contextmanager
def load(new_client: Callable[[], Client]) -> Iterator[list[Waiting]]:
    """Long requests under way through every door; all have ended when the block has."""
    callers = [Waiting(door) for door in DOORS]
    threads = [threading.Thread(target=caller.run, args=(new_client(),)) for caller in callers]
    for thread in threads:
        thread.start()
    for caller in callers:
        assert caller.flowing.wait(30), caller
    time.sleep(0.3)
    try:
        yield callers
    finally:
        for thread in threads:
            thread.join(timeout=90)
