"""The versions the engine may be asked for, each with an integer id of its own."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

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

    def register(self, lora_id: str, digest: str, path: Path) -> Version:
        """The version of this content; the same object for the same content."""
        with self._lock:
            version = self._known.get((lora_id, digest))
            if version is None:
                int_id = next(self._ids)
                if int_id > MAX_INT_ID:
                    raise OverflowError("adapter ids are used up; restart the server")
                version = Version(lora_id, digest, int_id, path)
                self._known[lora_id, digest] = version
            return version

    def forget(self, lora_id: str, digest: str) -> Version | None:
        """Takes a version out; its id is gone for good."""
        with self._lock:
            return self._known.pop((lora_id, digest), None)

    def get(self, lora_id: str, digest: str) -> Version:
        """The version that a ticket names.

        Raises:
            NotFound: it has gone since the gate decided.
        """
        version = self._known.get((lora_id, digest))
        if version is None:
            raise NotFound
        return version
