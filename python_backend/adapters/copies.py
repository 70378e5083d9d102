"""Which adapters have a copy in shared memory: the shm tier within its budget."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from python_backend.adapters import tiers
from python_backend.adapters.shm_tier import ShmTier, copy_bytes
from python_backend.adapters.tiers import Held
from python_backend.engine.base import Version

T = TypeVar("T")

#: The priority of each of some lora_ids, compared with one another.
Priorities = Callable[[Iterable[str]], dict[str, float]]


class Copies:
    """Chooses; lives on one event loop.

    Args:
        tier: opened.
        budget_bytes: never exceeded.
        pinned: lora_ids whose copies never go.
    """

    def __init__(
        self,
        tier: ShmTier,
        budget_bytes: int,
        priorities: Priorities,
        pinned: Callable[[], Iterable[str]],
    ) -> None:
        self._tier, self._budget_bytes = tier, budget_bytes
        self._priorities, self._pinned = priorities, pinned
        #: While it says so, no new copy is made. For a breaker.
        self.closed: Callable[[], bool] = lambda: False
        self._versions: dict[int, Version] = {}
        # One thread: the folder is nobody else's.
        self._thread = ThreadPoolExecutor(1, "shm-tier")

    @property
    def ids(self) -> frozenset[int]:
        """The ids of the versions that have a copy, or get one."""
        return frozenset(self._versions)

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that all copies take."""
        return sum(self._tier.held.values())

    @property
    def empty_bytes(self) -> int:
        """How many of them hold nothing."""
        return sum(self._tier.empty.values())

    async def keep(self, version: Version) -> bool:
        """Copies a version if it is worth its place; whether there is a copy.

        Only copies of a lower priority give way to it.
        """
        int_id = version.int_id
        if int_id in self._versions:
            return True
        if self.closed():
            return False
        try:
            size = copy_bytes(version.path)
        except OSError:
            return False
        names = {known.lora_id for known in self._versions.values()} | {version.lora_id}
        priorities, pinned = self._priorities(names), frozenset(self._pinned())
        sizes = self._tier.held
        held = [
            Held(
                there,
                sizes.get(there, 0),
                priorities[known.lora_id],
                kept=known.lora_id in pinned,
            )
            for there, known in self._versions.items()
        ]
        below = priorities[version.lora_id]
        plan = tiers.make_room(held, size, self._budget_bytes, below=below)
        if not plan.fits:
            return False
        for gone in plan.evict:
            del self._versions[gone]
        self._versions[int_id] = version

        def replace() -> bool:
            for gone in plan.evict:
                self._tier.drop(gone)
            return self._tier.put(int_id, version.path)

        done = await self._blocking(replace)
        if not done:
            self._versions.pop(int_id, None)
        return done

    async def trim(self, below_bytes: float) -> None:
        """Drops copies until less than ``below_bytes`` hold nothing.

        Those with the largest empty share first; pinned ones stay.
        """
        held, empty, pinned = self._tier.held, self._tier.empty, frozenset(self._pinned())
        left = self.empty_bytes
        for int_id in sorted(empty, key=lambda i: empty[i] / held[i], reverse=True):
            if left < below_bytes:
                return
            version = self._versions.get(int_id)
            if version is not None and version.lora_id not in pinned:
                left -= empty[int_id]
                await self.drop(int_id)

    async def drop(self, int_id: int) -> None:
        """Removes a version's copy, if it has one."""
        if self._versions.pop(int_id, None) is not None:
            await self._blocking(lambda: self._tier.drop(int_id))

    async def close(self) -> None:
        """Removes all copies. Callable more than once."""
        self._versions.clear()
        with contextlib.suppress(RuntimeError):
            await self._blocking(self._tier.close)
        self._thread.shutdown(wait=False)

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
