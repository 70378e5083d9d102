"""The engine behind its tiers: what is loaded makes room first, what is idle goes by priority.

Slots are vLLM's and the admission's affair. Here: the engine's host cache within a byte budget,
copies in shared memory within another, and adapters that are read before anybody asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
)

from python_backend.adapters import tiers
from python_backend.adapters.copies import Copies
from python_backend.adapters.house import House, weight_bytes
from python_backend.adapters.passed_on import PassedOn, ended
from python_backend.adapters.shm_tier import ShmTier
from python_backend.adapters.tiers import Held, Plan
from python_backend.engine.base import Engine, Job, Session, Step, Version
from python_backend.errors import ServingError
from python_backend.tier_settings import TierSettings

log = logging.getLogger(__name__)


#: Adapters that are brought at once which no request in the engine waits for.
PRELOADS = 4


class Store(PassedOn):
    """An ``Engine`` that keeps to the budgets; lives on the engine's event loop.

    Args:
        engine: started before anything else is asked of this.
        max_count: most adapters in the host cache, below the engine's own limit: vLLM must never
            choose what goes.
        shm: opened; None for no copies.
        clock: monotonic, seconds.
    """

    def __init__(
        self,
        engine: Engine,
        settings: TierSettings,
        *,
        max_count: int,
        shm: ShmTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine)
        self.settings, self._max_count = settings, max_count
        self._clock = clock
        self.heat = tiers.Heat(settings.half_life_s)
        self.house = House(lambda _: False, lambda: (), dict)
        self._copies: Copies | None = None
        if shm is not None:
            self._copies = Copies(shm, settings.shm_bytes, self._priorities, self._pinned)
        #: In the host cache or on the way there: version and bytes, by id.
        self._hosted: dict[int, tuple[Version, int]] = {}
        self._leaving: dict[int, asyncio.Task[None]] = {}
        self._using: Counter[int] = Counter()
        self._preloads = asyncio.Semaphore(PRELOADS)
        #: What has left the host cache, for whoever keeps copies; oldest first.
        self.evicted: deque[Version] = deque(maxlen=1024)
        #: Called with the id of what leaves the engine.
        self.left: Callable[[int], None] = lambda int_id: None
        #: Set when there may be something to do in the background.
        self.wake = asyncio.Event()

    async def load(self, version: Version) -> None:
        """See ``Engine.load``; makes room first, as far as what is idle goes."""
        with self._use(version):
            await self._bring(version, self._engine.load)

    async def preload(self, version: Version) -> None:
        """See ``Engine.preload``."""
        async with self._preloads:
            with self._use(version):
                await self._bring(version, self._engine.preload)

    async def prepare(self, version: Version) -> bool:
        """As ``preload``, for what somebody waits for; whether there was room.

        It takes nobody's place who is in the engine or waits as well.
        """
        async with self._preloads:
            if version.int_id in self._hosted:
                return True
            if not self.room(weight_bytes(version), sparing=True).fits:
                return False
            with self._use(version):
                await self._bring(version, self._engine.preload, sparing=True)
            return True

    async def _bring(
        self,
        version: Version,
        bring: Callable[[Version], Awaitable[None]],
        *,
        sparing: bool = False,
    ) -> None:
        int_id = version.int_id
        if (leaving := self._leaving.get(int_id)) is not None:
            await asyncio.wait({leaving})
        evictions: list[asyncio.Task[None]] = []
        if int_id not in self._hosted:
            size = weight_bytes(version)
            # Before the first await: loads at the same time share one budget. And not waited for:
            # each call into the engine takes a step, and it takes them in order.
            evictions = self._evict_now(self.room(size, sparing=sparing).evict)
            self._hosted[int_id] = (version, size)
        try:
            await bring(version)
            await ended(evictions)
        except ServingError:
            # Nothing of it is left in the engine. (A caller who goes away does not end the load:
            # then it stays here, and goes as anything idle goes.)
            self._hosted.pop(int_id, None)
            raise

    async def unload(self, int_id: int) -> bool:
        """See ``Engine.unload``: gone from every tier."""
        self._hosted.pop(int_id, None)
        self.left(int_id)
        if self._copies is not None:
            await self._copies.drop(int_id)
        return await self._engine.unload(int_id)

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """See ``Engine.generate``."""
        if job.version is not None:
            self.heat.note(job.version.lora_id, self._clock())
        return self.probe(job)

    async def probe(self, job: Job) -> AsyncGenerator[Step, None]:
        """As ``generate``, but nobody's use of the adapter: its priority stays."""
        answer = contextlib.aclosing(self._engine.generate(job))
        async with self._loaded(job.version), answer as steps:
            async for step in steps:
                yield step

    @contextlib.asynccontextmanager
    async def session(self, job: Job, candidates: int) -> AsyncIterator[Session]:
        """See ``Engine.session``."""
        if job.version is not None:
            self.heat.note(job.version.lora_id, self._clock())
        async with self._loaded(job.version), self._engine.session(job, candidates) as session:
            yield session

    @contextlib.asynccontextmanager
    async def _loaded(self, version: Version | None) -> AsyncIterator[None]:
        with self._use(version) if version else contextlib.nullcontext():
            if version is not None:
                await self.load(version)
            yield

    async def stop(self) -> None:
        """See ``Engine.stop``; leaves nothing in shared memory."""
        if self._copies is not None:
            await self._copies.close()
        await self._engine.stop()

    def now_s(self) -> float:
        """The clock by which uses are noted, seconds."""
        return self._clock()

    @property
    def hosted(self) -> dict[int, int]:
        """Bytes by the id of each version in the host cache, or on its way there."""
        return {int_id: size for int_id, (_, size) in self._hosted.items()}

    @property
    def in_shm(self) -> frozenset[int]:
        """The ids of the versions that have a copy in shared memory."""
        return self._copies.ids if self._copies is not None else frozenset()

    def tier_bytes(self) -> dict[str, tuple[int, int]]:
        """(budget, used) bytes of the tiers host and shm."""
        copies = self._copies.used_bytes if self._copies is not None else 0
        host = (self.settings.host_bytes, sum(self.hosted.values()))
        return {"host": host, "shm": (self.settings.shm_bytes, copies)}

    @property
    def shm_memory(self) -> tuple[int, int]:
        """Bytes that copies in shared memory may take, and how many of those taken hold nothing."""
        return self.settings.shm_bytes, self._copies.empty_bytes if self._copies else 0

    def close_shm_while(self, closed: Callable[[], bool]) -> None:
        """No new copies in shared memory while ``closed`` says so."""
        if self._copies is not None:
            self._copies.closed = closed

    async def trim_shm(self, below_bytes: float) -> None:
        """Drops copies in shared memory until less than ``below_bytes`` of them hold nothing."""
        if self._copies is not None:
            await self._copies.trim(below_bytes)

    def room(
        self,
        need_bytes: int,
        newcomer: str | None = None,
        need_count: int = 1,
        *,
        sparing: bool = False,
    ) -> Plan:
        """What would have to leave the host cache for so much more.

        Args:
            newcomer: who it is for, to whom only what has a lower priority gives way and nobody
                waits for; None for a request, to which whatever is not in use does.
            sparing: what somebody waits for gives way to no request either.
        """
        names = {version.lora_id for version, _ in self._hosted.values()}
        priorities = self._priorities(names | ({newcomer} if newcomer is not None else set()))
        pinned, copied = self._pinned(), self.in_shm
        # Who waits is not in the engine yet: sparing them all could exceed every budget.
        spared = sparing or newcomer is not None
        held = [
            Held(
                int_id,
                size,
                priorities[version.lora_id],
                # A copy in memory costs next to nothing to read again.
                0.0 if int_id in copied else float(size),
                self._using[int_id] > 0
                or version.lora_id in pinned
                or (spared and self.house.leased(int_id)),
                self.house.leased(int_id),
            )
            for int_id, (version, size) in self._hosted.items()
        ]
        return tiers.make_room(
            held,
            need_bytes,
            self.settings.host_bytes,
            need_count=need_count,
            max_count=self._max_count,
            below=float("inf") if newcomer is None else priorities[newcomer],
        )

    def known(self, ready: Iterable[str]) -> set[str]:
        """Whose uses are worth remembering: what is ready to be asked for, and what is hosted."""
        return {*ready, *(version.lora_id for version, _ in self._hosted.values())}

    async def copy(self, version: Version) -> bool:
        """Copies a version into shared memory if it is worth it; whether there is a copy."""
        return self._copies is not None and await self._copies.keep(version)

    def _priorities(self, lora_ids: Iterable[str]) -> dict[str, float]:
        return self.heat.priorities(lora_ids, self._clock())

    def _pinned(self) -> frozenset[str]:
        return frozenset(self.house.pinned())

    async def evict(self, int_ids: Iterable[int]) -> None:
        """Takes adapters out of the host cache, unless somebody has come for them meanwhile."""
        await ended(self._evict_now(int_ids))

    def _evict_now(self, int_ids: Iterable[int]) -> list[asyncio.Task[None]]:
        loop, tasks = asyncio.get_running_loop(), []
        for int_id in int_ids:
            if self._using[int_id] or int_id not in self._hosted:
                continue
            version, _ = self._hosted.pop(int_id)
            self.left(int_id)
            # Whoever wants it from now on waits until it has left.
            task = self._leaving[int_id] = loop.create_task(self._evicted(version))
            tasks.append(task)
        return tasks

    async def _evicted(self, version: Version) -> None:
        try:
            await self._engine.unload(version.int_id)
        finally:
            del self._leaving[version.int_id]
        log.info("%s left the host cache", version.name)
        self.evicted.append(version)
        self.wake.set()

    @contextlib.contextmanager
    def _use(self, version: Version) -> Iterator[None]:
        self._using[version.int_id] += 1
        try:
            yield
        finally:
            self._using[version.int_id] -= 1
            if not self._using[version.int_id]:
                del self._using[version.int_id]
                self.wake.set()
