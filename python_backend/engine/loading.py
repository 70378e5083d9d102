"""How versions come into vLLM and leave it: read beside the step, once, and never by halves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from python_backend.engine import convert
from python_backend.engine.base import Version
from python_backend.engine.board import PLACES, Board, Outcome
from python_backend.errors import AdapterFailed, ServingError

log = logging.getLogger(__name__)

#: How often the board is looked at while an adapter is being read, seconds.
_LOOK_S = 0.002


class Loading:
    """The loads of one engine; lives on its event loop.

    Args:
        llm: vLLM's ``AsyncLLM``.
        board: where the workers' readers say that they are done.
        workers: how many there are; 0 where they cannot read beside the step (vLLM then reads in
            it).
        check_alive: raises ``Unavailable`` if the engine is gone.
    """

    def __init__(
        self, llm: Any, board: Board, workers: int, check_alive: Callable[[], None]
    ) -> None:
        self._llm, self._board, self._workers = llm, board, workers
        self._check_alive = check_alive
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._preloads: dict[int, asyncio.Task[None]] = {}
        self._hosted: set[int] = set()
        self._places = list(range(PLACES))
        self._free = asyncio.Semaphore(PLACES)
        #: A quicker place to read a version from, if there is one.
        self.copy_of: Callable[[Version], Path | None] = lambda version: None

    async def load(self, version: Version) -> None:
        """Into the host cache and a slot; parallel calls for one version share one load.

        Raises:
            AdapterFailed: it cannot be loaded; nothing of it is left.
        """
        # Shielded: a caller who goes away must not cancel the load that others wait for.
        await asyncio.shield(_shared(self._loads, version, self._load))

    async def preload(self, version: Version) -> None:
        """Into the host cache; takes no slot, unless vLLM has to read by itself.

        Raises:
            AdapterFailed: it cannot be read; nothing of it is left.
        """
        if not self._workers:
            return await self.load(version)
        load = self._loads.get(version.int_id)
        going = load is not None and not (load.done() and (load.cancelled() or load.exception()))
        if version.int_id not in self._hosted and not going:
            await asyncio.shield(_shared(self._preloads, version, self._preload))

    async def unload(self, int_id: int) -> bool:
        """Out of slot and host cache, after a load that is under way; False if it was not there."""
        pending = [
            task
            for tasks in (self._loads, self._preloads)
            if (task := tasks.pop(int_id, None)) is not None and not task.done()
        ]
        if pending:
            await asyncio.wait(pending)
            self._check_alive()
        self._hosted.discard(int_id)
        return bool(await self._llm.remove_lora(int_id))

    async def _load(self, version: Version) -> None:
        self._check_alive()
        preload = self._preloads.pop(version.int_id, None)
        if preload is not None:
            await asyncio.wait({preload})
        if self._workers and version.int_id not in self._hosted:
            await self._read(version)
        await self._enter(version, self._llm.add_lora(convert.lora_request(version)))

    async def _preload(self, version: Version) -> None:
        self._check_alive()
        await self._read(version)
        call = self._llm.collective_rpc("lora_host", args=(version.int_id,))
        if not all(await self._enter(version, call)):
            # The host cache is full: vLLM would drop another adapter for it.
            self._hosted.discard(version.int_id)
            await self._llm.remove_lora(version.int_id)

    async def _enter(self, version: Version, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            found = await call
        except Exception as error:
            log.error("adapter %s cannot be loaded: %s", version.name, error)
            self._hosted.discard(version.int_id)
            # vLLM may have registered and half activated it (its slot then still holds most of
            # its previous occupant): whatever failed is taken out again.
            try:
                await self._llm.remove_lora(version.int_id)
            except Exception:
                self._check_alive()
                raise
            self._check_alive()
            raise _failed() from error
        self._hosted.add(version.int_id)
        return found

    async def _read(self, version: Version) -> None:
        """Has the workers read a version and put it by."""
        int_id, copy = version.int_id, self.copy_of(version)
        paths = [str(path.absolute()) for path in (copy, Path(version.path)) if path is not None]
        async with self._free:
            place = self._places.pop()
            self._board.clear(self._workers, place)
            try:
                await self._llm.collective_rpc(
                    "lora_prefetch", args=(version.name, int_id, paths, place)
                )
                while (found := self._board.outcome(self._workers, place, int_id)) is None:
                    await asyncio.sleep(_LOOK_S)
                    self._check_alive()
            except ServingError:
                raise
            except Exception:
                self._check_alive()
                # No reader was started, or one that will be forgotten: the place is free again.
                await self._llm.collective_rpc("lora_forget", args=(int_id,))
                self._places.append(place)
                raise
            # Not in a `finally`: a place that a reader may still write to is nobody else's.
            self._places.append(place)
        if found is Outcome.FAILED:
            reasons = await self._llm.collective_rpc("lora_forget", args=(int_id,))
            log.error("adapter %s cannot be read: %s", version.name, max(reasons))
            raise _failed()


def _failed() -> AdapterFailed:
    return AdapterFailed("this adapter cannot be loaded by the engine.")


def _shared(
    tasks: dict[int, asyncio.Task[None]],
    version: Version,
    work: Callable[[Version], Coroutine[Any, Any, None]],
) -> asyncio.Task[None]:
    """The task that brings this version; a new one if there is none or it has failed."""
    task = tasks.get(version.int_id)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = asyncio.get_running_loop().create_task(work(version))
        tasks[version.int_id] = task
    return task
