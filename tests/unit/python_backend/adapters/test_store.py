"""The engine behind its tiers: budgets at their edges, and what is in use stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from python_backend.adapters.tiering import updates
from python_backend.admin.listing import Residents
from python_backend.admission.slots import Slots
from python_backend.errors import AdapterFailed
from tests.unit.python_backend.adapters.store_house import COPY, SIZE, World


def test_budget_edges(tmp_path: Path) -> None:
    async def kept(host: int) -> list[str]:
        folder = tmp_path / str(host)
        folder.mkdir()
        world = World(folder, host=host)
        await world.engine.start()
        for name in ("aa_a_v1", "aa_b_v1"):
            assert await world.ask(world.adapter(name)) == f" {name}@{name}" * 2
            assert sum(world.store.hosted.values()) <= max(host, SIZE)
        await world.tending.once()
        assert sum(world.store.hosted.values()) <= host
        return await world.names()

    for host, expected in {
        SIZE - 1: [],  # It is served, and does not stay.
        SIZE: ["aa_b_v1"],
        SIZE + 1: ["aa_b_v1"],
        2 * SIZE - 1: ["aa_b_v1"],
        2 * SIZE: ["aa_a_v1", "aa_b_v1"],
    }.items():
        assert asyncio.run(kept(host)) == expected, host


def test_the_least_wanted_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=2 * SIZE)
        await world.engine.start()
        a, b, c = (world.adapter(f"aa_{n}_v1") for n in "abc")
        for version in (a, a, a, b, c):
            await world.ask(version)
        # a is older than b, but asked for more often.
        assert await world.names() == ["aa_a_v1", "aa_c_v1"]
        before = world.engine.counts["load"]
        assert await world.ask(b) == " aa_b_v1@aa_b_v1" * 2
        assert world.engine.counts["load"] == before + 1

    asyncio.run(scenario())


def test_what_is_in_use_or_pinned_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=SIZE)
        await world.engine.start()
        used, pinned, other = (world.adapter(f"aa_{n}_v1") for n in "acd")
        world.engine.step_s = 0.05
        running = asyncio.create_task(world.ask(used))
        await asyncio.sleep(0.02)
        world.pinned.add(pinned.lora_id)
        for version in (pinned, other):
            await world.store.load(version)
        await world.tending.once()
        assert await world.names() == ["aa_a_v1", "aa_c_v1"]
        await running
        world.leased.clear()
        await world.tending.once()
        assert await world.names() == ["aa_c_v1"]

    asyncio.run(scenario())


def test_loads_at_the_same_time_share_one_budget(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=3 * SIZE, count=3)
        await world.engine.start()
        world.engine.load_s = 0.01
        versions = [world.adapter(f"aa_{n}_v1") for n in range(8)]
        await asyncio.gather(*(world.ask(v) for v in versions for _ in range(2)))
        await world.tending.once()
        assert len(await world.names()) == 3
        assert world.engine.counts["load"] == 8

    asyncio.run(scenario())


def test_the_count_is_a_limit_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, count=2)
        await world.engine.start()
        for n in range(5):
            await world.ask(world.adapter(f"aa_{n}_v1"))
            assert len(world.store.hosted) <= 2
        assert await world.names() == ["aa_3_v1", "aa_4_v1"]

    asyncio.run(scenario())


def test_what_fails_takes_no_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=SIZE)
        await world.engine.start()
        bad = world.adapter("aa_bad_v1")
        world.engine.failing.add("aa_bad_v1")
        for _ in range(2):
            with pytest.raises(AdapterFailed):
                await world.ask(bad)
        assert world.store.hosted == {}
        # Its caller goes away during the load, which then fails: found and dropped later.
        world.engine.load_s = 0.02
        asking = asyncio.create_task(world.ask(bad))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(0.03)
        await world.ask(world.adapter("aa_a_v1"))
        assert await world.names() == ["aa_a_v1"]

    asyncio.run(scenario())


def test_unloading_leaves_nothing_in_any_tier(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=SIZE, shm=COPY)
        await world.engine.start()
        a, b = world.adapter("aa_a_v1"), world.adapter("aa_b_v1")
        await world.ask(a)
        await world.ask(b)
        await world.tending.once()
        assert world.store.in_shm == {a.int_id}
        assert world.store.tier_bytes() == {"host": (SIZE, SIZE), "shm": (COPY, COPY)}
        assert [(u.labels[-1][1], *u.values) for u in updates(world.store)] == [
            ("shm", 1),
            ("budget", SIZE),
            ("used", SIZE),
            ("budget", COPY),
            ("used", COPY),
        ]
        assert world.shm and world.shm.path(a.int_id)
        assert await world.store.unload(a.int_id) is False
        assert await world.store.unload(b.int_id) is True
        assert world.store.in_shm == frozenset() and world.store.hosted == {}
        assert world.shm.path(a.int_id) is None
        await world.store.stop()
        assert list((tmp_path / "shm").iterdir()) == []
        await world.store.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("budget, copies", [(COPY - 1, 0), (COPY, 1), (COPY + 1, 1), (2 * COPY, 2)])
def test_the_budget_of_shared_memory_is_exact(tmp_path: Path, budget: int, copies: int) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=SIZE, shm=budget)
        await world.engine.start()
        for n in range(3):
            await world.ask(world.adapter(f"aa_{n}_v1"))
            await world.tending.once()
            assert world.shm and sum(world.shm.held.values()) <= budget
        assert len(world.store.in_shm) == copies
        # The last to have left was used latest; whoever was there gave way.
        if copies:
            assert world.ready["aa_1_v1"].int_id in world.store.in_shm
        await world.store.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "warm, expected",
    [
        ("all", ["aa_0_v1", "aa_1_v1", "aa_3_v1"]),  # 3 is pinned, and three fit.
        (2, ["aa_0_v1", "aa_3_v1"]),
        (["aa_2_v1", "aa_9_v1"], ["aa_2_v1"]),
        (0, []),
    ],
)
def test_warming(tmp_path: Path, warm: object, expected: list[str]) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=3 * SIZE, warm=warm)
        await world.engine.start()
        for n in range(5):
            world.adapter(f"aa_{n}_v1")
        world.pinned.add("aa_3_v1")
        for _ in range(3):
            await world.tending.once()
        assert await world.names() == expected
        assert world.engine.counts["preload"] == len(expected)

    asyncio.run(scenario())


def test_warming_prefers_what_is_used_and_stops_when_held_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=2 * SIZE, warm=2)
        await world.engine.start()
        versions = [world.adapter(f"aa_{n}_v1") for n in range(4)]
        for _ in range(3):
            world.store.heat.note("aa_2_v1", world.now)
        world.tending.held_back = lambda: True
        await world.tending.once()
        assert await world.names() == []
        world.tending.held_back = lambda: False
        await world.tending.once()
        assert await world.names() == ["aa_0_v1", "aa_2_v1"]
        # Another one becomes more wanted than the coldest that is there.
        for _ in range(4):
            world.store.heat.note("aa_3_v1", world.now)
        await world.tending.once()
        assert await world.names() == ["aa_2_v1", "aa_3_v1"]
        assert await world.ask(versions[0]) == " aa_0_v1@aa_0_v1" * 2

    asyncio.run(scenario())


def test_what_cannot_be_warmed_is_tried_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, warm="all")
        await world.engine.start()
        for n in range(3):
            world.adapter(f"aa_{n}_v1")
        world.engine.failing.add("aa_0_v1")
        world.gone.add("aa_1_v1")
        for _ in range(3):
            await world.tending.once()
        assert await world.names() == ["aa_2_v1"]
        assert world.engine.counts["preload"] == 2

    asyncio.run(scenario())


def test_the_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, warm="all")
        await world.engine.start()
        world.adapter("aa_a_v1")
        world.tending.start()
        async with asyncio.timeout(5):
            while not world.store.hosted:
                await asyncio.sleep(0.01)
        world.engine.die()
        await world.tending.stop()
        await world.tending.stop()

    asyncio.run(scenario())


def test_whoever_wants_it_back_waits_until_it_has_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=SIZE)
        await world.engine.start()
        a, b = world.adapter("aa_a_v1"), world.adapter("aa_b_v1")
        await world.ask(a)
        texts = await asyncio.gather(*(world.ask(v) for v in (b, a, b, a)))
        assert texts == [f" {v.name}" * 2 for v in (b, a, b, a)]
        await world.tending.once()
        assert len(await world.names()) == 1

    asyncio.run(scenario())


def test_the_list_shows_every_tier() -> None:
    residents = Residents.of({"slots": [1, None], "host": [1, 2], "shm": [2, 3]})
    found = {int_id: residents.tiers(int_id) for int_id in range(1, 5)}
    assert found == {
        1: ["slot", "host", "disk"],
        2: ["host", "shm", "disk"],
        3: ["shm", "disk"],
        4: ["disk"],
    }


def test_admission_hears_of_what_leaves_the_engine(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=SIZE)
        await world.engine.start()
        slots = Slots(2)
        world.store.left = slots.gone
        a, b = world.adapter("aa_a_v1"), world.adapter("aa_b_v1")
        for version in (a, b):
            slots.enter(version.int_id, "fin", 1)
            await world.ask(version)
            slots.leave(version.int_id, "fin")
        assert list(slots.resident()) == [b.int_id], "one fits the host, and no slot outlives it"
        slots.enter(b.int_id, "fin", 2)
        slots.gone(b.int_id)
        assert slots.is_resident(b.int_id), "what is in flight stays"
        slots.leave(b.int_id, "fin")
        await world.store.unload(b.int_id)
        assert slots.untouched and not list(slots.resident())
        await world.store.stop()

    asyncio.run(scenario())
