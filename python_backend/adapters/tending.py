"""What the tiers need in the background: trimmed to their budgets, copied, and kept warm."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from python_backend.adapters import tiers
from python_backend.adapters.heat_file import HeatFile
from python_backend.adapters.house import weight_bytes
from python_backend.adapters.store import Store
from python_backend.engine.base import Version
from python_backend.errors import NotFound, ServingError, Unavailable

log = logging.getLogger(__name__)

#: How often there is a look without a reason, seconds.
_LOOK_S = 5.0
#: How long after one look comes the next, at least, seconds.
_PAUSE_S = 0.2

#: How often the first warming says how far it is, seconds.
_TOLD_EVERY_S = 5.0
#: Adapters that are named in one line of the log, at most.
_NAMED = 10

#: Keeps a version from being retired while it is used. Raises ``NotFound`` if it is already.
Lease = Callable[[Version], AbstractContextManager[object]]


class Tending:
    """Looks after a store; one task on the engine's event loop.

    Args:
        lease: held on each version while it is being warmed or copied.
    """

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store, self._lease = store, lease
        #: Asked before each adapter that nobody has asked for; while it says so, none is read.
        #: For breakers. Budgets are kept in any case.
        self.held_back: Callable[[], bool] = lambda: False
        #: Called after each look.
        self.looked: Callable[[], None] = lambda: None
        #: Where uses are kept over a restart.
        self.heat_file: HeatFile | None = None
        self._unfit: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Warms what is to be warm before anybody is served, and says in the log how far it is.

        Nobody is there to be hurt, so no breaker holds it back. What fails is left out: whoever
        asks for it is told why.

        Raises:
            Unavailable: the engine is gone.
        """
        store, began = self._store, self._store.now_s()
        warm = store.settings.warm
        if not warm:
            return
        told = began

        def tell(done: int, count: int) -> None:
            nonlocal told
            if (now := store.now_s()) - told >= _TOLD_EVERY_S:
                told = now
                log.info("warming: %d of %d adapters", done, count)

        if isinstance(warm, tuple) and (gone := sorted(set(warm) - store.house.ready().keys())):
            log.warning("tiers.warm names what cannot be served: %s", ", ".join(gone))
        wanted = await self._warm(held_back=lambda: False, tell=tell)
        there = store.hosted.keys() | store.in_shm
        cold = [version.lora_id for version in wanted if version.int_id not in there]
        if cold:
            more = f" and {len(cold) - _NAMED} more" if len(cold) > _NAMED else ""
            log.warning("not warm (no room, or it failed): %s%s", ", ".join(cold[:_NAMED]), more)
        log.info(
            "warmed %d of %d adapters, %.1f s",
            len(wanted) - len(cold),
            len(wanted),
            store.now_s() - began,
        )

    def start(self) -> None:
        """Begins; called on the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Ends the task. Callable more than once."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.once()
            except Unavailable:
                log.info("the engine is gone: its tiers are not looked after any more")
                return
            except Exception:
                log.exception("the tiers could not be looked after; trying again")
            # Requests come and go all the time; a look for each would cost more than it brings.
            await asyncio.sleep(_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._store.wake.wait(), _LOOK_S)

    async def once(self) -> None:
        """One look: trims the host cache, copies what has left it, warms what is to be warm."""
        store = self._store
        store.wake.clear()
        await store.evict(store.room(0, need_count=0).evict)
        while store.evicted:
            version = store.evicted.popleft()
            with contextlib.suppress(NotFound), self._lease(version):
                await store.copy(version)
        if store.settings.warm:
            await self._warm(held_back=self.held_back)
        self.looked()
        if self.heat_file is not None:
            await self.heat_file.keep(lambda: store.known(store.house.ready()))

    async def _warm(
        self,
        held_back: Callable[[], bool],
        tell: Callable[[int, int], None] = lambda done, count: None,
    ) -> list[Version]:
        """One pass over what is to be warm; returns all of that, warm by now or not.

        Args:
            tell: called before each with how many are done, and of how many.
        """
        store = self._store
        ready = store.house.ready()
        store.heat.keep_only(store.known(ready))
        priorities = store.heat.priorities(ready, store.now_s())
        names = tiers.wishes(store.settings.warm, ready, store.house.pinned(), priorities)
        wanted = [ready[lora_id] for lora_id in names]
        for done, version in enumerate(wanted):
            if held_back():
                break
            tell(done, len(wanted))
            if version.int_id in store.hosted or version.int_id in self._unfit:
                continue
            try:
                with self._lease(version):
                    await self._bring(version)
            except NotFound:
                continue
            except Unavailable:
                raise
            except ServingError as error:
                # Once: whoever asks for it is told so, and its next version is another one.
                self._unfit.add(version.int_id)
                log.warning("%s could not be warmed: %s", version.name, error.message)
        return wanted

    async def _bring(self, version: Version) -> None:
        """Into the host cache if it is worth its place there, or else into shared memory."""
        store = self._store
        plan = store.room(weight_bytes(version), newcomer=version.lora_id)
        if not plan.fits:
            await store.copy(version)
            return
        await store.evict(plan.evict)
        await store.preload(version)
