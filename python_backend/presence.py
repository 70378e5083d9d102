"""Which processes of this server live: each model's process leaves a record, others look at it.

Triton (24.10) says a model is ready, and keeps its callers waiting, long after the process that
should answer them has been killed. So the processes say themselves that they are there: a record
in the runtime directory, taken away when a model ends in order. A record whose process has gone
is a death.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path

from python_backend import runtime
from python_backend.ticket import boottime_ns

FOLDER = "processes"
#: Stands for the server as a whole, in the record of whoever is about to stop it.
SERVER = "server"
#: Seconds between two heartbeats of a process that gives them.
HEARTBEAT_S = 1.0
#: Seconds without one after which such a process counts as hung. Long: on an overloaded machine
#: an event loop may well rest for seconds, and a restart costs more than the wait.
SILENCE_S = 60.0
#: Seconds a model's process has to end by itself once its server has died.
GRACE_S = 5.0


@dataclasses.dataclass(frozen=True)
class Record:
    """What a process says of itself. ``start`` is ``runtime.process_start``."""

    model: str
    boot_id: str
    pid: int
    start: str
    #: Whether the record's file is touched every ``HEARTBEAT_S``.
    heartbeat: bool = False
    #: Why the process, though alive, cannot answer any more; empty while it can.
    failed: str = ""


@dataclasses.dataclass(frozen=True)
class Lost:
    """A process that can answer nobody any more."""

    model: str
    reason: str


def judge(record: Record, *, running: bool, silent_s: float) -> Lost | None:
    """Whether a process is lost.

    Args:
        running: whether the process of that pid and start time runs.
        silent_s: seconds since its last sign of life.
    """
    if not running:
        return Lost(record.model, f"the process of {record.model} (pid {record.pid}) has died")
    if record.failed:
        return Lost(record.model, f"{record.model}: {record.failed}")
    if record.heartbeat and silent_s > SILENCE_S:
        return Lost(
            record.model,
            f"{record.model} (pid {record.pid}) has given no sign of life for {silent_s:.0f} s",
        )
    return None


class Presence:
    """This process's record, from its model's start to its end.

    Args:
        run_dir: the server's runtime directory.
        model: the model this process serves.
        heartbeat: promises a ``beat`` every ``HEARTBEAT_S``.

    Raises:
        OSError: the runtime directory cannot be written.
    """

    def __init__(self, run_dir: Path, model: str, *, heartbeat: bool = False) -> None:
        pid = os.getpid()
        start = runtime.process_start(pid) or ""
        self._record = Record(model, runtime.boot_id(), pid, start, heartbeat)
        self._path = _write(run_dir / FOLDER, self._record)

    def beat(self) -> None:
        """A sign of life."""
        with contextlib.suppress(OSError):
            _touch(self._path)

    def fail(self, why: str) -> None:
        """Says that this process can answer nobody any more."""
        self._record = dataclasses.replace(self._record, failed=why)
        with contextlib.suppress(OSError):
            _write(self._path.parent, self._record)

    def withdraw(self) -> None:
        """The model ends in order: its process will be missed by nobody."""
        with contextlib.suppress(OSError):
            self._path.unlink()


def announce(run_dir: Path, model: str, *, heartbeat: bool = False) -> Presence:
    """The record of a model's process, which from now on also ends when its server has died.

    Triton's stub looks after its server too, but waits for ever for a lock that a killed server
    held.
    """
    end_with(os.getppid(), GRACE_S)
    return Presence(run_dir, model, heartbeat=heartbeat)


def end_with(pid: int, grace_s: float) -> None:
    """Kills this process when that one has been gone for ``grace_s`` seconds."""
    start = runtime.process_start(pid)

    def watch() -> None:
        while runtime.process_start(pid) == start:
            time.sleep(0.5)
        time.sleep(grace_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="server-watch", daemon=True).start()


def lost(run_dir: Path, boot_id: str, models: Collection[str] = ()) -> list[Lost]:
    """The lost processes of this boot, of ``models`` or of all.

    A server about to be stopped because of a loss is among them: then nobody can answer.
    """
    found = []
    for path in sorted((run_dir / FOLDER).glob("[!.]*.json")):
        try:
            record = Record(**json.loads(path.read_text("utf-8")))
            silent_s = (boottime_ns() - path.stat().st_mtime_ns) / 1e9
        except (OSError, ValueError, TypeError):
            continue  # Withdrawn at this moment, or not ours.
        running = runtime.process_start(record.pid) == record.start
        if record.boot_id != boot_id or (models and record.model not in {*models, SERVER}):
            continue
        if (loss := judge(record, running=running, silent_s=silent_s)) is not None:
            found.append(loss)
    return found


def announced(run_dir: Path) -> set[str]:
    """The models whose process has a record: what they had to start has started."""
    return {path.name.rsplit("-", 1)[0] for path in (run_dir / FOLDER).glob("[!.]*.json")}


def give_up(run_dir: Path, server_pid: int, why: str) -> None:
    """Says that this server is about to be killed: whoever waits is answered while there is time.

    Args:
        server_pid: tritonserver's process.
    """
    start = runtime.process_start(server_pid) or ""
    record = Record(SERVER, runtime.boot_id(server_pid), server_pid, start, failed=why)
    _write(run_dir / FOLDER, record)


def _write(folder: Path, record: Record) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{record.model}-{record.pid}.json"
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(record), file)
    _touch(Path(temporary))
    os.replace(temporary, path)
    return path


def _touch(path: Path) -> None:
    # In time since boot, not of the wall clock: that one may jump, and a jump is no silence.
    now_ns = boottime_ns()
    os.utime(path, ns=(now_ns, now_ns))


def clear(run_dir: Path) -> None:
    """Removes every record; for the one that starts a server, before it does."""
    for path in (run_dir / FOLDER).glob("*"):
        path.unlink(missing_ok=True)


class Watch:
    """A door's view of the processes it depends on, looked at once per ``recheck_s``.

    Args:
        run_dir: the server's runtime directory.
        models: the models it depends on.
    """

    def __init__(self, run_dir: Path, models: Collection[str], *, recheck_s: float = 0.25) -> None:
        self._run_dir, self._models, self._recheck_s = run_dir, models, recheck_s
        self._boot_id = runtime.boot_id()
        self._looked_s = float("-inf")
        self._lost = ""

    def lost(self) -> str:
        """Why one of them cannot answer any more; empty while all can."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= self._recheck_s:
            self._looked_s = now_s
            found = lost(self._run_dir, self._boot_id, self._models)
            self._lost = "; ".join(loss.reason for loss in found)
        return self._lost
