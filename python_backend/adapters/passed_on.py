"""What tiers leave to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from python_backend.engine.base import Engine, EngineInfo


class PassedOn:
    """The methods of an ``Engine`` that tiers change nothing about."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self) -> EngineInfo:
        """See ``Engine.start``."""
        return await self._engine.start()

    async def encode(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        """See ``Engine.encode``."""
        return await self._engine.encode(prompt, special_tokens=special_tokens)

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special: bool) -> Callable[[int], str]:
        """See ``Engine.detokenizer``."""
        return self._engine.detokenizer(prompt_ids, skip_special=skip_special)

    async def resident(self) -> tuple[int, ...]:
        """See ``Engine.resident``."""
        return await self._engine.resident()

    @property
    def alive(self) -> bool:
        """See ``Engine.alive``."""
        return self._engine.alive

    async def trim(self) -> None:
        """See ``Engine.trim``."""
        await self._engine.trim()


async def ended(evictions: list[asyncio.Task[None]]) -> None:
    """Waits for all; one who is cancelled meanwhile stops waiting and not what he waits for."""
    if evictions:
        await asyncio.wait(evictions)
    for eviction in evictions:
        eviction.result()
