"""What waits for a slot is read before it has one, and takes nobody's place who is in use."""

from __future__ import annotations

import asyncio
from pathlib import Path

from python_backend.adapters import ahead
from python_backend.adapters.ahead import Ahead
from python_backend.adapters.store import PRELOADS
from python_backend.engine.base import Version
from tests.unit.python_backend.adapters.store_house import SIZE, World
from tests.unit.python_backend.service_house import until


class Line:
    """A queue in front of a world's engine."""

    def __init__(self, world: World) -> None:
        self.world, self.waiting = world, list[Version]()
        self.ahead = Ahead(world.store, lambda count: self.waiting[:count], world.lease)

    def wait(self, *versions: Version) -> None:
        self.waiting += versions
        self.world.leased |= {version.int_id for version in versions}
        self.ahead.changed()


def test_what_waits_is_there_before_its_turn(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.engine.start()
        line = Line(world)
        world.engine.load_s = 0.02
        versions = [world.adapter(f"aa_{n}_v1") for n in range(PRELOADS + 2)]
        line.wait(*versions)
        await until(lambda: len(world.store.hosted) == PRELOADS)
        # The next ones, as soon as those before them have their turn.
        line.waiting = line.waiting[3:]
        line.ahead.changed()
        await until(lambda: len(world.store.hosted) == PRELOADS + 2)
        await until(lambda: world.engine.counts["load"] == PRELOADS + 2)
        for version in versions:
            await world.ask(version)
        assert world.engine.counts["load"] == PRELOADS + 2

    asyncio.run(scenario())


def test_nobody_in_use_or_waiting_gives_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=2 * SIZE)
        await world.engine.start()
        line = Line(world)
        idle, one, two, three = (world.adapter(f"aa_{n}_v1") for n in range(4))
        await world.ask(idle)
        line.wait(one, two, three)
        await until(lambda: {one.int_id, two.int_id} == set(world.store.hosted))
        line.ahead.changed()
        await asyncio.sleep(3 * ahead._SOON_S)
        assert await world.names() == ["aa_1_v1", "aa_2_v1"]

    asyncio.run(scenario())


def test_what_fails_or_has_gone_is_not_tried_on_and_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.engine.start()
        line = Line(world)
        bad, gone, good = (world.adapter(f"aa_{n}_v1") for n in ("bad", "gone", "good"))
        world.engine.failing.add("aa_bad_v1")
        world.gone.add("aa_gone_v1")
        line.wait(bad, gone, good)
        await until(lambda: good.int_id in world.store.hosted)
        for _ in range(3):
            line.ahead.changed()
            await asyncio.sleep(2 * ahead._SOON_S)
        assert world.engine.counts["preload"] == 2
        # Whoever asks for it anew has it tried anew.
        line.waiting = []
        line.ahead.changed()
        await asyncio.sleep(2 * ahead._SOON_S)
        line.wait(bad)
        await until(lambda: world.engine.counts["preload"] == 3)

    asyncio.run(scenario())


def test_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.engine.start()
        line = Line(world)
        line.wait(world.adapter("aa_a_v1"))
        line.ahead.stop()
        await asyncio.sleep(2 * ahead._SOON_S)
        assert world.engine.counts["preload"] == 0

    asyncio.run(scenario())


def test_who_waits_goes_last_and_exceeds_no_budget(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=3 * SIZE, count=3)
        await world.engine.start()
        versions = [world.adapter(f"aa_{n}_v1") for n in range(6)]
        first, idle, second, *more = versions
        world.leased |= {version.int_id for version in versions if version is not idle}
        for version in (first, idle, second):
            await world.ask(version)
        await world.ask(more[0])
        # The idle one was used later than the first, and goes before it.
        assert await world.names() == ["aa_0_v1", "aa_2_v1", "aa_3_v1"]
        for version in more[1:]:
            await world.ask(version)
            assert sum(world.store.hosted.values()) <= 3 * SIZE
        assert await world.names() == ["aa_3_v1", "aa_4_v1", "aa_5_v1"]
        # Nobody's place is taken who waits by what nobody has asked for, or by what waits too.
        assert not world.store.room(SIZE, newcomer=idle.lora_id).fits
        assert not await world.store.prepare(first)
        world.leased.discard(more[0].int_id)
        assert await world.store.prepare(first)
        assert await world.names() == ["aa_0_v1", "aa_4_v1", "aa_5_v1"]

    asyncio.run(scenario())
