"""The catalog snapshot: what adapters there are, as the engine process last published it.

The engine process is the only writer; every gate reads. A snapshot is one JSON file, replaced
atomically. It carries the boot id of its server and the engine process it speaks for, so that a
gate never routes to adapters of a server that has gone.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import threading
from pathlib import Path

from python_backend import files, runtime
from python_backend.adapters.aliases import Route
from python_backend.errors import Unavailable

SNAPSHOT_FILE = "catalog.json"
#: How often a gate looks for a newer snapshot, at most, seconds.
RECHECK_S = 0.2


class State(enum.StrEnum):
    """Where an adapter stands."""

    STAGING = "staging"
    READY = "ready"
    FAILED = "failed"
    DISABLED = "disabled"
    REMOVING = "removing"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One adapter. ``digest`` is the sha256 hex of its content, empty while there is none."""

    lora_id: str
    state: State
    digest: str = ""
    rank: int = 0
    size_bytes: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The whole catalog at one moment.

    ``engine_pid`` and ``engine_start`` name the engine process (see ``runtime.process_start``);
    ``model_dir`` is the base model's folder, for its chat template.
    """

    boot_id: str
    generation: int
    engine_pid: int
    engine_start: str
    model_dir: str
    max_model_len: int
    entries: dict[str, Entry]
    aliases: dict[str, Route] = dataclasses.field(default_factory=dict)
    #: Largest rank that a slot takes; 0 where nobody has said.
    max_lora_rank: int = 0

    def to_json(self) -> str:
        """The snapshot as JSON text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, default=_plain)

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """The snapshot in ``text``, as ``to_json`` wrote it."""
        body = json.loads(text)
        entries = {
            name: Entry(**{**entry, "state": State(entry["state"])})
            for name, entry in body.pop("entries").items()
        }
        aliases = {name: Route(**route) for name, route in body.pop("aliases", {}).items()}
        return cls(entries=entries, aliases=aliases, **body)

    def ready(self, lora_id: str) -> Entry | None:
        """The entry of a ready adapter, or None."""
        entry = self.entries.get(lora_id)
        return entry if entry is not None and entry.state is State.READY else None


def _plain(value: object) -> object:
    if isinstance(value, Route):
        return value.model_dump()
    raise TypeError(f"{type(value).__name__} is not part of a snapshot")


def publish(run_dir: Path, snapshot: Snapshot) -> None:
    """Replaces the snapshot file atomically.

    Raises:
        OSError: the folder cannot be written; the old snapshot is still whole.
    """
    files.replace(run_dir / SNAPSHOT_FILE, snapshot.to_json())


def withdraw(run_dir: Path) -> None:
    """Takes the snapshot away: the gates answer `unavailable` from then on."""
    (run_dir / SNAPSHOT_FILE).unlink(missing_ok=True)


class SnapshotReader:
    """A gate's view of the snapshot: re-read when the file has changed. Thread-safe.

    Args:
        run_dir: the server's runtime directory.
        boot_id: this server's boot id; a snapshot of another boot does not count.
        recheck_s: how often the file and the engine process are looked at, at most, seconds.
    """

    def __init__(self, run_dir: Path, boot_id: str, *, recheck_s: float = RECHECK_S) -> None:
        self._path = run_dir / SNAPSHOT_FILE
        self._boot_id = boot_id
        self._recheck_s = recheck_s
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._snapshot: Snapshot | None = None
        self._checked_s = float("-inf")

    def current(self, now_s: float) -> Snapshot:
        """The newest snapshot; ``now_s`` is a monotonic clock, seconds.

        Raises:
            Unavailable: there is none of this boot, or its engine process has gone.
        """
        with self._lock:
            if now_s - self._checked_s >= self._recheck_s:
                self._refresh()
                self._checked_s = now_s
            if self._snapshot is None:
                raise Unavailable("the engine is not ready.", retry_after=5)
            return self._snapshot

    def available(self, now_s: float) -> bool:
        """Whether ``current`` has one to give."""
        try:
            return bool(self.current(now_s))
        except Unavailable:
            return False

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                self._snapshot = Snapshot.from_json(self._path.read_text("utf-8"))
                self._stamp = stamp
        except (OSError, ValueError, KeyError, TypeError):
            self._snapshot, self._stamp = None, None
        snapshot = self._snapshot
        if snapshot is not None and (
            snapshot.boot_id != self._boot_id
            or runtime.process_start(snapshot.engine_pid) != snapshot.engine_start
        ):
            self._snapshot, self._stamp = None, None
