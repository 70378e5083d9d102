"""What opening the breaker of fragmentation does: memory that is held and not used goes back."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Protocol

from python_backend.breaker import State
from python_backend.guard import Guard

log = logging.getLogger(__name__)


class Trimmed(Protocol):
    """The engine with its tiers, as far as it can give memory back."""

    @property
    def shm_memory(self) -> tuple[int, int]:
        """Bytes that copies in shared memory may take, and how many of those taken hold nothing."""

    async def trim(self) -> None:
        """See ``Engine.trim``."""

    async def trim_shm(self, below_bytes: float) -> None:
        """Drops copies in shared memory until less than ``below_bytes`` of them hold nothing."""


class Trimming:
    """Trims once when a pool's breaker opens, and every ``again_s`` while it is open.

    Args:
        close: the share below which the breaker closes: shared memory is trimmed to it.
        clock: monotonic, seconds.
    """

    def __init__(
        self,
        engine: Trimmed,
        guard: Guard,
        close: float,
        again_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._engine, self._guard, self._close = engine, guard, close
        self._again_s, self._clock = again_s, clock
        self._last_s = -math.inf
        self._opened = 0
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """On the event loop, when the breakers have heard of the newest values."""
        breakers = (self._guard.fragmentation, self._guard.shm_fragmentation)
        opened = sum(breaker.transitions[State.OPEN] for breaker in breakers)
        is_open = any(breaker.state is State.OPEN for breaker in breakers)
        due = is_open and self._clock() - self._last_s >= self._again_s
        if (due or opened > self._opened) and (self._task is None or self._task.done()):
            self._last_s, self._opened = self._clock(), opened
            self._task = asyncio.get_running_loop().create_task(self._trim())

    async def _trim(self) -> None:
        try:
            if self._guard.shm_fragmentation.state is State.OPEN:
                budget, _ = self._engine.shm_memory
                await self._engine.trim_shm(self._close * budget)
            await self._engine.trim()
            log.info("memory that was held and not used was given back")
        except Exception:
            log.exception("memory could not be trimmed")
