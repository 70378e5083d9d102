"""The tiers of one server: put together, told of the rest, begun and ended."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from python_backend.adapters.ahead import Ahead
from python_backend.adapters.heat_file import FILE as HEAT_FILE
from python_backend.adapters.heat_file import HeatFile
from python_backend.adapters.house import House
from python_backend.adapters.keeper import Keeper
from python_backend.adapters.shm_tier import ShmTier
from python_backend.adapters.store import PRELOADS, Store
from python_backend.adapters.tending import Tending
from python_backend.admission import Admission
from python_backend.breaker import State as Breaking
from python_backend.breaker_settings import BreakerSettings
from python_backend.engine.base import Engine, Version
from python_backend.errors import NotFound
from python_backend.guard import FRAGMENTATION, LOAD, SWITCH
from python_backend.lora_metrics import RESIDENT, TIER_BYTES
from python_backend.metrics import Update
from python_backend.tier_settings import TierSettings

log = logging.getLogger(__name__)


class TieredEngine(Engine, Protocol):
    """An engine that can read an adapter from a copy, and says what it holds."""

    def read_from(self, copy_of: Callable[[Version], Path | None]) -> None:
        """Has versions read from a quicker copy where there is one."""

    async def state(self) -> dict[str, Any]:
        """``slots`` and ``host``: ids."""


class Tiering:
    """The store, and what it needs beside the engine.

    Args:
        engine: started.
        engine_args: what it was started with.
    """

    def __init__(
        self, engine: TieredEngine, settings: TierSettings, engine_args: Mapping[str, Any]
    ) -> None:
        self._engine = engine
        shm = _opened() if settings.shm_bytes else None
        # The engine drops the least recently used by itself at its limit; ours is always below,
        # and what is in use or being brought may fill every slot, and more, on top of it.
        limit = int(engine_args["max_cpu_loras"]) - int(engine_args["max_loras"]) - PRELOADS - 1
        #: The engine to be used from here on.
        self.store = Store(engine, settings, max_count=max(1, limit), shm=shm)
        self._tending: Tending | None = None
        self._ahead: Ahead | None = None
        self._heat_file: HeatFile | None = None
        if shm is not None:
            engine.read_from(lambda version: shm.path(version.int_id))

    async def begin(
        self,
        keeper: Keeper,
        held_back: Callable[[], bool],
        put: Callable[[Sequence[Update]], None],
        admission: Admission,
        state_dir: Path,
    ) -> None:
        """Goes by what the keeper knows from now on; begins to read what waits.

        Returns once what ``warm`` names has been read: a server that is ready is warm.

        Args:
            held_back: whether nothing is to be read at the moment that nobody has asked for.
            put: takes metric updates.
            admission: knows who waits.
            state_dir: where uses are kept over a restart.

        Raises:
            Unavailable: the engine is gone.
        """
        versions = keeper.versions

        def ready() -> dict[str, Version]:
            found = {}
            for lora_id, digest in keeper.offered().items():
                with contextlib.suppress(NotFound):
                    found[lora_id] = versions.get(lora_id, digest)
            return found

        def upcoming(count: int) -> list[Version]:
            found = map(versions.of, admission.scheduler.next_adapters(count))
            return [version for version in found if version is not None]

        def lease(version: Version) -> AbstractContextManager[object]:
            return versions.lease(version.lora_id, version.digest, used=False)

        self.store.house = House(versions.leased, lambda: keeper.book.current.pinned, ready)
        self._tending = Tending(self.store, lease)
        self._tending.held_back = held_back
        self._tending.looked = lambda: put(updates(self.store))
        heat_file = HeatFile(state_dir / HEAT_FILE, self.store.heat, self.store.now_s)
        heat_file.restore()
        self._heat_file = self._tending.heat_file = heat_file
        await self._tending.prepare()
        self._tending.start()
        self._ahead = Ahead(self.store, upcoming, lease)
        # What is held back there is what nobody has asked for; what waits here comes anyway.
        admission.on_change = _both(admission.on_change, self._ahead.changed)

    async def state(self) -> dict[str, Any]:
        """``slots``, ``host`` and ``shm``: the ids in each tier."""
        return {**await self._engine.state(), "shm": sorted(self.store.in_shm)}

    async def stop(self) -> None:
        """Ends everything, the engine last. Callable more than once."""
        if self._ahead is not None:
            self._ahead.stop()
        if self._tending is not None:
            await self._tending.stop()
        heat_file, self._heat_file = self._heat_file, None
        if heat_file is not None:
            await heat_file.write()
        await self.store.stop()


def updates(store: Store) -> list[Update]:
    """What the tiers hold, as metrics; slots and adapters in the host are the worker's to tell."""
    found = [Update(RESIDENT, [len(store.in_shm)], (("tier", "shm"),))]
    for tier, sizes in store.tier_bytes().items():
        for kind, size in zip(("budget", "used"), sizes, strict=True):
            found.append(Update(TIER_BYTES, [size], (("tier", tier), ("kind", kind))))
    return found


def strained(states: Mapping[str, Breaking], settings: BreakerSettings) -> bool:
    """Whether adapters that nobody has asked for would make matters worse.

    Switching or memory at its warning; loading only when it is open, since to warm is what loads
    are for there.
    """
    return (
        (settings.switch_rate.enforce and states[SWITCH] is not Breaking.CLOSED)
        or (settings.fragmentation.enforce and states[FRAGMENTATION] is not Breaking.CLOSED)
        or (settings.load_latency.enforce and states[LOAD] is Breaking.OPEN)
    )


def _both(one: Callable[[], None], other: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        one()
        other()

    return call


def _opened() -> ShmTier | None:
    tier = ShmTier()
    try:
        tier.open()
    except OSError as error:
        log.warning("no tier in shared memory: %s", error)
        return None
    return tier
