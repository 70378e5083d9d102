"""Warming before the server is ready: all of it, with progress, and what fails does not stop it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from python_backend.engine.base import Version
from python_backend.errors import Unavailable
from tests.unit.python_backend.adapters.store_house import SIZE, World


def prepare(world: World, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is in the host cache afterwards; what was said is in ``caplog``."""

    async def scenario() -> list[str]:
        await world.engine.start()
        await world.tending.prepare()
        return await world.names()

    with caplog.at_level(logging.INFO):
        return asyncio.run(scenario())


def test_all_are_there_whatever_breakers_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, warm="all")
    names = [world.adapter(f"aa_{n}_v1").lora_id for n in range(5)]
    world.tending.held_back = lambda: True
    preload = world.engine.preload

    async def slow(version: Version) -> None:
        world.now += 3
        await preload(version)

    world.engine.preload = slow  # type: ignore[method-assign]
    assert prepare(world, caplog) == names
    # Every 5 s by the clock, at 0, 3, 6, 9 and 12.
    assert [m for m in caplog.messages if m.startswith("warming")] == [
        "warming: 2 of 5 adapters",
        "warming: 4 of 5 adapters",
    ]
    assert caplog.messages[-1] == "warmed 5 of 5 adapters, 15.0 s"


def test_one_that_fails_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, host=2 * SIZE, warm=("aa_0_v1", "aa_9_v1", "aa_1_v1", "aa_2_v1"))
    for n in range(4):
        world.adapter(f"aa_{n}_v1", size=2 * SIZE if n == 2 else SIZE)
    world.engine.failing.add("aa_0_v1")
    # The third is larger than what is left beside the second, which is as much wanted.
    assert prepare(world, caplog) == ["aa_1_v1"]
    said = "\n".join(caplog.messages)
    assert "tiers.warm names what cannot be served: aa_9_v1" in said
    assert "aa_0_v1 could not be warmed" in said
    assert "not warm (no room, or it failed): aa_0_v1, aa_2_v1" in said
    assert "warmed 1 of 3 adapters" in said


def test_an_engine_that_dies_ends_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, warm="all")
        await world.engine.start()
        world.adapter("aa_0_v1")
        world.engine.die()
        with pytest.raises(Unavailable):
            await world.tending.prepare()

    asyncio.run(scenario())


def test_nothing_to_warm_is_not_worth_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.adapter("aa_0_v1")
    assert prepare(world, caplog) == []
    assert caplog.messages == []
