"""The adapters as they stand now: entries, versions, and what becomes of replaced ones.

Only the engine process has a shelf; gates read what it publishes. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections.abc import Callable, Iterable

from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.scan import Scanned
from python_backend.adapters.versions import Versions
from python_backend.engine.base import Version

#: Writes the snapshot that gates read.
Publish = Callable[[dict[str, Entry]], None]
#: Takes over a version that is no longer offered; True if it was replaced by another one, so that
#: tickets for it are still to be honoured.
Retire = Callable[[Version, bool], None]


class Released(enum.Enum):
    """What came of giving a retired version's id back."""

    YES = "yes"
    IN_USE = "in use"
    ON_OFFER = "on offer"


class Shelf:
    """Owns the catalog's entries.

    Args:
        publish: called with all entries after each change, one call at a time.
        retire: called for each version that is no longer offered, after it was published.
    """

    def __init__(self, versions: Versions, publish: Publish, retire: Retire) -> None:
        self._versions, self._publish, self._retire = versions, publish, retire
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        #: What has changed and is not published yet, because that failed.
        self._stale = False
        self._to_retire: list[tuple[Version, bool]] = []

    def entries(self) -> dict[str, Entry]:
        """All entries as they stand."""
        with self._lock:
            return dict(self._entries)

    def has(self, lora_id: str) -> bool:
        """Whether there is an adapter of this name, in whatever state."""
        return lora_id in self._entries

    def update(self, scanned: Iterable[Scanned], gone: Iterable[str] = ()) -> None:
        """Puts what was judged on the shelf, takes what has gone off it, and publishes once.

        A changed folder that is refused leaves the version before it in service, with the reason
        beside it: a bad copy must not take a department's adapter away.

        Raises:
            OSError: the snapshot could not be written; the shelf itself has changed.
        """
        with self._lock:
            self._stale = True
            for one in scanned:
                self._to_retire += self._put(one)
            for lora_id in gone:
                self._to_retire += [(version, False) for version in self._take(lora_id)]
        self.publish()

    def remark(self, lora_id: str, reason: str) -> None:
        """Puts a reason beside an adapter that is ready; an empty one takes it away.

        Raises:
            OSError: the snapshot could not be written; the shelf itself has changed.
        """
        with self._lock:
            before = self._entries.get(lora_id)
            if before is None or before.state is not State.READY or before.reason == reason:
                return
            self._entries[lora_id] = dataclasses.replace(before, reason=reason)
            self._stale = True
        self.publish()

    def catch_up(self) -> None:
        """Publishes what an earlier failure has left unpublished.

        Raises:
            OSError: the snapshot still cannot be written.
        """
        if self._stale:
            self.publish()

    def publish(self) -> None:
        """Publishes the entries again, for what is published beside them.

        Raises:
            OSError: the snapshot could not be written.
        """
        with self._lock:
            self._publish(dict(self._entries))
            self._stale = False
            retired, self._to_retire = self._to_retire, []
        for version, replaced in retired:
            self._retire(version, replaced)

    def release(self, version: Version) -> Released:
        """Takes a retired version's id out of use, unless it is in use or on offer again."""
        with self._lock:
            entry = self._entries.get(version.lora_id)
            if entry is not None and entry.digest == version.digest:
                return Released.ON_OFFER
            idle = self._versions.forget_idle(version)
            return Released.YES if idle else Released.IN_USE

    def _put(self, one: Scanned) -> list[tuple[Version, bool]]:
        lora_id = one.entry.lora_id
        before = self._entries.get(lora_id)
        if one.path is None:
            if before is not None and before.state is State.READY:
                reason = f"the update was refused: {one.entry.reason}"
                self._entries[lora_id] = dataclasses.replace(before, reason=reason)
            else:
                self._entries[lora_id] = one.entry
            return []
        self._versions.register(lora_id, one.entry.digest, one.path)
        self._entries[lora_id] = one.entry
        if before is None or before.digest in ("", one.entry.digest):
            return []
        return [(self._versions.get(lora_id, before.digest), True)]

    def _take(self, lora_id: str) -> list[Version]:
        entry = self._entries.pop(lora_id, None)
        if entry is None or not entry.digest:
            return []
        return [self._versions.get(lora_id, entry.digest)]
