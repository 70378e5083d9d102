"""Sessions through the store: what they use stays, and counts as used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from python_backend.engine.base import Job
from python_backend.errors import AdapterFailed
from python_backend.messages import EngineRequest
from tests.unit.python_backend.adapters.store_house import SIZE, World


def test_an_open_session_keeps_its_adapter(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, host=SIZE)
        await world.engine.start()
        used, other = (world.adapter(f"aa_{n}_v1") for n in "ab")
        job = Job("u", (1,), EngineRequest({"max_tokens": 2}), used, "")
        async with world.store.session(job, 8) as session:
            found = await session.next((1, 2))
            assert found.ids[0] == used.int_id
            await world.ask(other)
            await world.tending.once()
            assert "aa_a_v1" in await world.names()
        await world.ask(other)
        await world.tending.once()
        assert await world.names() == ["aa_b_v1"]
        assert world.engine.running == set()
        async with world.store.session(Job("b", (1,), job.request, None, ""), 8) as session:
            assert (await session.next((1,))).ids[0] == 0
        assert world.store.detokenizer((1,), skip_special=True)(5) == " t5"

    asyncio.run(scenario())


def test_one_that_fails_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        await world.engine.start()
        bad = world.adapter("aa_bad_v1")
        world.engine.failing.add("aa_bad_v1")
        job = Job("u", (1,), EngineRequest({"max_tokens": 2}), bad, "")
        with pytest.raises(AdapterFailed):
            async with world.store.session(job, 8):
                pass
        assert await world.names() == []

    asyncio.run(scenario())
