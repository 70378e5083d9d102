"""Notices that the engine has died, or that the server is about to be stopped because of a loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from python_backend import presence
from python_backend.errors import Unavailable

log = logging.getLogger(__name__)

_POLL_S = 0.25
_RETRY_S = 30


class Watchdog:
    """A task of the engine's loop that fails whoever waits when nobody will answer.

    Args:
        record: this process's record.
        alive: whether the engine can still answer.
        given_up: why the whole server is about to be stopped; empty while it is not.
        fail: fails every request under way and all that come, with this error.
        on_death: what else is to be done once the engine has died.
    """

    def __init__(
        self,
        record: presence.Presence,
        *,
        alive: Callable[[], bool],
        given_up: Callable[[], str],
        fail: Callable[[Unavailable], None],
        on_death: Callable[[], None],
    ) -> None:
        self._record, self._alive, self._given_up = record, alive, given_up
        self._fail, self._on_death = fail, on_death
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts watching, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._record.beat()
            if not self._alive():
                log.error("the engine has died; every request is answered `unavailable`")
                self._record.fail("the engine has died")
                self._fail(Unavailable("the engine has stopped.", retry_after=_RETRY_S))
                self._on_death()
                return
            if why := self._given_up():
                log.error("the server is about to be stopped: %s", why)
                self._fail(Unavailable("the server is restarting.", retry_after=_RETRY_S))
                return
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Ends the watch; the record is taken away, since an end in order is no death."""
        self._record.withdraw()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
