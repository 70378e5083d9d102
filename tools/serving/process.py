"""The server's process and everything it starts: one session, stopped as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tools import layout
from tools.serving import shm
from tools.tritonserver import Launch

#: Seconds from the first SIGTERM until everything is killed; the promise is 30 for all of it.
PATIENCE_S = 22.0
#: Seconds for what outlives tritonserver itself (stubs, vLLM's engine) before it is killed.
ORPHANS_S = 3.0
#: Seconds for Python's resource trackers, which outlive the processes they clean up after.
TRACKERS_S = 2.0
_PR_SET_PDEATHSIG = 1


def all_pids() -> list[int]:
    """Every process this one can see."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def session_members(session: int) -> list[int]:
    """The living processes of a session, zombies left out.

    The session, not the process group: a child that makes its own group stays in it.
    """
    members = []
    for pid in all_pids():
        with contextlib.suppress(OSError):
            after_name = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            if int(after_name[3]) == session and after_name[0] != "Z":
                members.append(pid)
    return members


def part(session: int, name: str) -> int | None:
    """The process of a model of the server, or vLLM's ``EngineCore``; None where there is none."""
    for pid in session_members(session):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if f"/{name}/1/model.py" in command or f"VLLM::{name}" in command:
                return pid
    return None


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (
            b"multiprocessing.resource_tracker"
            in (Path("/proc") / str(pid) / "cmdline").read_bytes()
        )
    return False


def end_with_parent() -> None:
    """For ``preexec_fn``: the child is told to end when its parent has.

    A parent that is killed has no chance to clean up, and must not leave it holding ports.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class ServerProcess:
    """A running tritonserver.

    Args:
        launch: which server, in which environment.
        arguments: its command line.
        log: file its output goes to, from the start.
        shm_prefix: what the names of its shared memory regions begin with.
    """

    def __init__(self, launch: Launch, arguments: list[str], log: Path, shm_prefix: str) -> None:
        self._shm_prefix = shm_prefix
        self._not_ours = shm.everything()
        self._seen: set[Path] = set()
        with log.open("wb") as output:
            # Its own session: Ctrl-C in the terminal reaches us alone, and we stop it in order.
            self._process = subprocess.Popen(  # noqa: S603
                launch.command(arguments),
                env=dict(launch.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The stub of the wheel ignores PYTHONPATH: it finds our packages from here.
                cwd=layout.ROOT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    @property
    def pid(self) -> int:
        """Process id, and session id, of tritonserver."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def note_shared_memory(self) -> None:
        """Remembers the regions its processes use now; what is killed later can say no more."""
        self._seen |= self._shared_memory()

    def stop(self, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Stop the server and all it started, and remove the shared memory it left.

        Takes at most about 27 s.

        Args:
            hurry: asked all the time; once true, everything is killed at once.

        Returns:
            Whether it ended by itself, without a kill.
        """
        deadline = time.monotonic() + PATIENCE_S
        ours = self._seen | self._shared_memory()
        if self._process.poll() is None:
            self._process.terminate()
        while self._process.poll() is None and time.monotonic() < deadline and not hurry():
            time.sleep(0.1)
        ours |= self._shared_memory()
        in_order = self._process.poll() is not None
        if in_order:
            # A server that had not finished loading leaves the processes of its models behind.
            self._signal_all(signal.SIGTERM)
            deadline = time.monotonic() + ORPHANS_S
            while session_members(self.pid) and time.monotonic() < deadline and not hurry():
                time.sleep(0.1)
        survivors = [pid for pid in session_members(self.pid) if not _is_tracker(pid)]
        self._kill_all()
        self._process.wait(timeout=5)
        ours |= shm.with_prefix(self._shm_prefix)
        shm.remove(ours - self._not_ours, in_use=shm.mapped_by(all_pids()) if ours else ())
        return in_order and not survivors

    def _kill_all(self) -> None:
        began = time.monotonic()
        while members := session_members(self.pid):
            waited = time.monotonic() - began
            # Python's trackers remove the semaphores of processes that were killed, then end.
            spared = [pid for pid in members if waited < TRACKERS_S and _is_tracker(pid)]
            for pid in set(members) - set(spared):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if waited > TRACKERS_S + ORPHANS_S:
                break  # Stuck in the kernel: nothing more can be done from here.
            time.sleep(0.05)

    def _shared_memory(self) -> set[Path]:
        return shm.mapped_by(session_members(self.pid)) | shm.with_prefix(self._shm_prefix)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in session_members(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
