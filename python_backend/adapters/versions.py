"""The versions the engine may be asked for, each with an integer id of its own."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from python_backend.adapters.usage import Usage
from python_backend.engine.base import Version
from python_backend.errors import NotFound

#: vLLM keeps ids in int32 on some runners.
MAX_INT_ID = 2**31 - 1


class Versions:
    """Versions by lora_id and digest. Thread-safe.

    Ids come from a counter and are never used twice in the life of the process: vLLM keys loaded
    adapters by id alone, so a reused id would answer with the old weights.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._known: dict[tuple[str, str], Version] = {}
        self._by_id: dict[int, Version] = {}
        self._leases: Counter[int] = Counter()
        #: By lora_id, in seconds of the monotonic clock.
        self.usage = Usage()

    def register(self, lora_id: str, digest: str, path: Path) -> Version:
        """The version of this content; the same object for the same content."""
        with self._lock:
            version = self._known.get((lora_id, digest))
            if version is None:
                int_id = next(self._ids)
                if int_id > MAX_INT_ID:
                    raise OverflowError("adapter ids are used up; restart the server")
                version = Version(lora_id, digest, int_id, path)
                self._known[lora_id, digest] = self._by_id[int_id] = version
            return version

    def get(self, lora_id: str, digest: str) -> Version:
        """The version of this content.

        Raises:
            NotFound: it has gone.
        """
        version = self._known.get((lora_id, digest))
        if version is None:
            raise NotFound
        return version

    @contextmanager
    def lease(self, lora_id: str, digest: str, *, used: bool = True) -> Iterator[Version]:
        """The version that a ticket names, kept for as long as the block runs.

        Args:
            used: whether it counts as a use.

        Raises:
            NotFound: it has gone since the gate decided.
        """
        with self._lock:
            version = self.get(lora_id, digest)
            self._leases[version.int_id] += 1
        if used:
            self.usage.note(lora_id, time.monotonic())
        try:
            yield version
        finally:
            with self._lock:
                self._leases[version.int_id] -= 1
                if not self._leases[version.int_id]:
                    del self._leases[version.int_id]

    def forget_idle(self, version: Version) -> bool:
        """Takes a version out if no lease is held on it; its id is gone for good."""
        with self._lock:
            if version.int_id in self._leases:
                return False
            # The same content may have come back under a new id, which stays.
            if self._known.get((version.lora_id, version.digest)) is version:
                del self._known[version.lora_id, version.digest]
            self._by_id.pop(version.int_id, None)
            return True

    def of(self, int_id: int) -> Version | None:
        """The version with this id, if it is still there."""
        return self._by_id.get(int_id)

    def leased(self, int_id: int) -> bool:
        """Whether a version is in use or waited for."""
        return int_id in self._leases

    def int_ids(self) -> dict[tuple[str, str], int]:
        """The id of each version, by lora_id and digest."""
        with self._lock:
            return {key: version.int_id for key, version in self._known.items()}

    def has_digest(self, digest: str) -> bool:
        """Whether any version has this content."""
        with self._lock:
            return any(known == digest for _, known in self._known)

    @property
    def leases(self) -> int:
        """Leases held at the moment."""
        with self._lock:
            return self._leases.total()
