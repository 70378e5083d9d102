"""Who may change an adapter now: one at a time, whoever it is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

#: How often a claim that somebody else holds is tried again, seconds.
_AGAIN_S = 0.02


class Claims:
    """The lora_ids that are being changed. Thread-safe.

    A set of names and no map of locks: what nobody changes leaves nothing behind, and whoever
    waits on the event loop holds no thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimed: set[str] = set()

    def __len__(self) -> int:
        return len(self._claimed)

    @contextlib.contextmanager
    def attempt(self, lora_id: str) -> Iterator[bool]:
        """Claims ``lora_id`` for the block; False if somebody else has it."""
        with self._lock:
            claimed = lora_id not in self._claimed
            if claimed:
                self._claimed.add(lora_id)
        try:
            yield claimed
        finally:
            if claimed:
                with self._lock:
                    self._claimed.discard(lora_id)

    @contextlib.asynccontextmanager
    async def hold(self, lora_id: str) -> AsyncIterator[None]:
        """Claims ``lora_id`` for the block, waiting until it is free."""
        while True:
            with self.attempt(lora_id) as claimed:
                if claimed:
                    yield
                    return
            await asyncio.sleep(_AGAIN_S)
