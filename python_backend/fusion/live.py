"""The mixtures that are ready or in use: made when first asked for, ordinary adapters from then on.

Lives on the engine's event loop; what takes time is done in a thread beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.staging_guard import StagingGuard
from python_backend.adapters.versions import Versions
from python_backend.engine.base import Engine, Version
from python_backend.errors import AdapterFailed, Overloaded, ServingError
from python_backend.fusion.building import Builder, Plan
from python_backend.fusion.recipe import Recipe
from python_backend.ticket import Part

log = logging.getLogger(__name__)

#: How often it is looked for mixtures whose parts have changed, seconds.
LOOK_S = 1.0
#: Expression and digest: the name of one mixture.
_Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class House:
    """What mixtures need of the rest.

    Args:
        guard: keeps staged copies from being removed while one is written.
        discard: removes the staged copy of a digest soon, unless a version needs it.
        offered: the digest of each adapter that may be asked for, by lora_id.
        forget: drops what is remembered of the uses of a lora_id.
        built: hears how long it took to make one, seconds.
    """

    guard: StagingGuard
    discard: Callable[[str], None]
    offered: Callable[[], Mapping[str, str]]
    forget: Callable[[str], None] = lambda lora_id: None
    built: Callable[[float], None] = lambda seconds: None


class Fusions:
    """Makes mixtures, and takes them away.

    Args:
        max_live: different mixtures at once; beyond, the least recently used idle one goes. One
            department may have at most three quarters of them in use.
    """

    def __init__(
        self, versions: Versions, engine: Engine, builder: Builder, house: House, *, max_live: int
    ) -> None:
        self._versions, self._engine, self._builder = versions, engine, builder
        self._house, self._max_live = house, max_live
        #: Least recently used first.
        self._live: OrderedDict[_Key, tuple[Version, Recipe]] = OrderedDict()
        self._share = max_live - max_live // 4
        self._wanted: Counter[_Key] = Counter()
        #: The same by department.
        self._users: dict[str, Counter[_Key]] = {}
        self._making: dict[_Key, asyncio.Task[None]] = {}
        self._reserved = 0
        self._leaving: set[asyncio.Task[None]] = set()
        # One thread: two at once would share the same cores and need twice the memory.
        self._thread = ThreadPoolExecutor(1, "fusion")

    @property
    def live(self) -> list[str]:
        """The expressions of all, the least recently used first."""
        return [expression for expression, _ in self._live]

    @contextlib.asynccontextmanager
    async def lease(self, parts: tuple[Part, ...], department: str) -> AsyncIterator[Version]:
        """The mixture of ``parts``, kept for as long as the block runs, and its parts with it.

        Raises:
            NotFound: a part has gone since the gate decided.
            InvalidArgument: they do not fit the engine together.
            Overloaded: as many mixtures as may be are in use, by all or by the department.
            AdapterFailed: it cannot be made.
        """
        recipe = Recipe(parts)
        key = (recipe.expression, recipe.digest)
        with contextlib.ExitStack() as held:
            sources = [
                held.enter_context(self._versions.lease(part.lora_id, part.digest))
                for part in parts
            ]
            held.enter_context(self._want(key, department))
            if key not in self._live:
                await self._make(key, recipe, sources)
            self._live.move_to_end(key)
            yield held.enter_context(self._versions.lease(*key))

    @contextlib.contextmanager
    def _want(self, key: _Key, department: str) -> Iterator[None]:
        mine = self._users.setdefault(department, Counter())
        if key not in mine and len(mine) >= self._share:
            raise Overloaded("too many different mixtures of yours are in use.", retry_after=1)
        for users in (self._wanted, mine):
            users[key] += 1
        try:
            yield
        finally:
            for users in (self._wanted, mine):
                users[key] -= 1
                if not users[key]:
                    del users[key]
            if not mine:
                del self._users[department]

    async def _make(self, key: _Key, recipe: Recipe, sources: Sequence[Version]) -> None:
        if (task := self._making.get(key)) is None:
            work = self._made(key, recipe, [source.path for source in sources])
            task = self._making[key] = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(lambda _: self._making.pop(key))
        # Shielded: a caller who goes away must not end what others wait for.
        await asyncio.shield(task)

    async def _made(self, key: _Key, recipe: Recipe, folders: Sequence[Path]) -> None:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        weights = [part.weight for part in recipe.parts]
        try:
            parts = list(zip(folders, weights, strict=True))
            plan = await loop.run_in_executor(self._thread, self._builder.plan, parts)
            self._make_room()
            self._reserved += 1
            try:
                version = await loop.run_in_executor(self._thread, self._written, key, plan)
            finally:
                self._reserved -= 1
        except (OSError, AdapterRejected) as error:
            log.error("the mixture %s cannot be made: %s", recipe.expression, error)
            raise AdapterFailed("this mixture cannot be made.") from None
        self._live[key] = (version, recipe)
        took = time.monotonic() - began
        self._house.built(took)
        log.info("mixture %s made in %.0f ms", version.name, took * 1e3)

    def _written(self, key: _Key, plan: Plan) -> Version:
        expression, digest = key
        with self._house.guard.staging():
            if self._versions.has_digest(digest):
                # The same contents under other names.
                path = self._builder.folder(digest)
            else:
                path = self._builder.write(plan, digest)
            return self._versions.register(expression, digest, path)

    def _make_room(self) -> None:
        """Has idle mixtures leave until there is room for one more.

        Raises:
            Overloaded: there are not enough that nobody wants.
        """
        idle = [key for key in self._live if key not in self._wanted]
        while len(self._live) + self._reserved >= self._max_live:
            if not idle:
                raise Overloaded("too many different mixtures are in use.", retry_after=1)
            # One that is being copied just now stays, and the next goes.
            self._retire(idle.pop(0))

    def _retire(self, key: _Key) -> None:
        version, _ = self._live[key]
        if self._versions.forget_idle(version):
            del self._live[key]
            task = asyncio.get_running_loop().create_task(self._left(version))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _left(self, version: Version) -> None:
        try:
            await self._engine.unload(version.int_id)
        except ServingError as error:
            log.warning("%s could not be unloaded: %s", version.name, error.message)
        self._house.forget(version.lora_id)
        self._house.discard(version.digest)
        log.info("mixture %s is retired", version.name)

    def sweep(self) -> None:
        """Has idle mixtures leave that no ticket will ask for again: a part of theirs has changed,
        or is not offered any more."""
        if not self._live:
            return
        offered = self._house.offered()
        for key, (_, recipe) in list(self._live.items()):
            stale = any(offered.get(part.lora_id) != part.digest for part in recipe.parts)
            if stale and key not in self._wanted:
                self._retire(key)

    async def follow(self) -> None:
        """Sweeps again and again, for ever."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    self.sweep()
                except Exception:
                    log.exception("mixtures could not be looked after; trying again")
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
