"""Memory goes back once when a breaker opens, now and then while it is open, and nobody waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from python_backend.breaker_settings import BreakerSettings
from python_backend.errors import Unavailable
from python_backend.guard import Guard
from python_backend.trimming import Trimming
from tests.unit.python_backend.adapters.store_house import COPY, SIZE, World


class Engine:
    def __init__(self) -> None:
        self.trims = 0
        self.below: list[float] = []
        self.dead = self.hangs = False

    shm_memory = (1000, 400)

    async def trim(self) -> None:
        self.trims += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.dead:
            raise Unavailable("gone")

    async def trim_shm(self, below_bytes: float) -> None:
        self.below.append(below_bytes)


async def nothing(version: object) -> None:
    pass


def test_when_it_opens_and_again_while_it_is_open() -> None:
    async def main() -> None:
        clock = [0.0]
        engine = Engine()
        guard = Guard(BreakerSettings(), nothing, lambda: clock[0])
        trimming = Trimming(engine, guard, 0.15, 60.0, lambda: clock[0])

        async def look() -> int:
            trimming.look()
            for _ in range(3):
                await asyncio.sleep(0)
            return engine.trims

        guard.fragmentation.value(0.29, 0)
        assert await look() == 0
        guard.fragmentation.value(0.3, 0)
        assert (await look(), await look(), engine.below) == (1, 1, [])
        clock[0] = 59.9
        assert await look() == 1
        clock[0] = 60.0
        assert await look() == 2
        # The other pool opens: at once, and down to where its breaker closes.
        guard.shm_fragmentation.value(0.4, 61)
        clock[0] = 61.0
        assert (await look(), engine.below) == (3, [150.0])
        guard.reset("fragmentation")
        clock[0] = 500.0
        assert await look() == 3
        engine.dead = True
        guard.fragmentation.value(0.9, 500)
        assert await look() == 4
        # A worker that does not answer keeps nobody, and is not asked again meanwhile.
        engine.dead, engine.hangs, clock[0] = False, True, 600.0
        assert await look() == 5
        clock[0] = 700.0
        assert await look() == 5

    asyncio.run(main())


def test_copies_that_are_mostly_ends_of_pages_go(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path, host=SIZE, shm=4 * COPY)
        await world.engine.start()
        for n in range(4):
            await world.ask(world.adapter(f"aa_{n}_v1"))
            await world.tending.once()
        store = world.store
        budget, empty = store.shm_memory
        assert (budget, empty) == (4 * COPY, 3 * (COPY - SIZE - 2))
        await store.trim_shm(float(empty))
        assert len(store.in_shm) == 2, "below means below"
        closed = True
        store.close_shm_while(lambda: closed)
        await world.ask(world.adapter("aa_9_v1"))
        await world.tending.once()
        assert len(store.in_shm) == 2
        closed = False
        await world.ask(world.adapter("aa_8_v1"))
        await world.tending.once()
        assert len(store.in_shm) == 3
        await store.trim_shm(0.0)
        assert (len(store.in_shm), store.shm_memory[1]) == (0, 0)
        await store.trim()
        assert world.engine.counts["trim"] == 1
        await store.stop()

    asyncio.run(main())
