"""What the engine holds, asked rarely and never waited for long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from python_backend.admin.listing import Residents

log = logging.getLogger(__name__)

#: The engine is asked at most this often, and waited for at most so long, seconds.
ASK_AGAIN_S, ASK_LIMIT_S = 1.0, 0.05


class EngineView:
    """The newest answer to what lies in slots and host cache; lives on one event loop.

    Args:
        ask: what a worker of the engine says of itself (``AsyncLLMEngine.state``).
    """

    def __init__(self, ask: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        self._ask = ask
        #: As of the last answer.
        self.residents = Residents()
        self._asked_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Asks again if it is time; an engine that is busy answers for the next caller."""
        if self._asking is None and time.monotonic() - self._asked_s >= ASK_AGAIN_S:
            self._asked_s = time.monotonic()
            self._asking = asyncio.get_running_loop().create_task(self._ask_engine())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=ASK_LIMIT_S)

    async def _ask_engine(self) -> None:
        try:
            self.residents = Residents.of(await self._ask())
        except Exception:
            log.exception("the engine does not say what it holds")
        finally:
            self._asking = None

    def stop(self) -> None:
        """Asks no more."""
        if self._asking is not None:
            self._asking.cancel()
