"""Loads as the front end sees them: several workers, none that reads, engines that die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from python_backend.engine import convert
from python_backend.engine.base import Version
from python_backend.engine.board import PLACES, Board, Outcome
from python_backend.engine.loading import Loading
from python_backend.errors import AdapterFailed, Unavailable

GONE = "the engine has stopped."


class Llm:
    """What of ``AsyncLLM`` is used; workers read when they are told to."""

    def __init__(self, board: Board, workers: int) -> None:
        self.board, self.workers = board, workers
        self.calls: list[tuple[str, int]] = []
        self.paths: list[list[str]] = []
        self.reading: dict[int, int] = {}
        self.at_once = 0
        self.instant: Outcome | None = Outcome.READ
        self.host = True
        self.dead = False
        self.resident: set[int] = set()

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        await asyncio.sleep(0)
        if method == "lora_prefetch":
            _, int_id, paths, place = args
            self.calls.append(("read", int_id))
            self.paths.append(paths)
            self.reading[int_id] = place
            self.at_once = max(self.at_once, len(self.reading))
            if self.instant:
                self.end(int_id, *[self.instant] * self.workers)
            return [None] * self.workers
        (int_id,) = args
        self.calls.append((method.removeprefix("lora_"), int_id))
        if method == "lora_host":
            self.resident.add(int_id)
            return [self.host] * self.workers
        return ["", "OSError: gone"]

    def end(self, int_id: int, *outcomes: Outcome) -> None:
        place = self.reading.pop(int_id)
        for worker, outcome in enumerate(outcomes):
            self.board.post(worker, place, int_id, outcome)

    async def add_lora(self, int_id: int) -> bool:
        await asyncio.sleep(0)
        self.calls.append(("add", int_id))
        self.resident.add(int_id)
        return True

    async def remove_lora(self, int_id: int) -> bool:
        await asyncio.sleep(0)
        self.calls.append(("remove", int_id))
        there = int_id in self.resident
        self.resident.discard(int_id)
        return there

    def check_alive(self) -> None:
        if self.dead:
            raise Unavailable(GONE, retry_after=30)


Make = Callable[[int], tuple[Llm, Loading]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(convert, "lora_request", lambda version: version.int_id)

    def made(workers: int) -> tuple[Llm, Loading]:
        board = Board(tmp_path / "board")
        llm = Llm(Board(tmp_path / "board"), workers)
        return llm, Loading(llm, board, workers, llm.check_alive)

    return made


def version(int_id: int) -> Version:
    return Version(f"fin_a{int_id}_v1", "d" * 64, int_id, Path("/staged"))


def test_read_then_added_once(make: Make) -> None:
    llm, loading = make(2)

    async def scenario() -> None:
        await asyncio.gather(*(loading.load(version(1)) for _ in range(3)))
        await loading.load(version(1))
        await loading.preload(version(1))
        assert llm.calls == [("read", 1), ("add", 1)]
        assert await loading.unload(1) is True
        assert await loading.unload(1) is False
        await loading.load(version(1))
        assert llm.calls[-2:] == [("read", 1), ("add", 1)]

    asyncio.run(scenario())


def test_a_preload_is_not_read_again(make: Make) -> None:
    llm, loading = make(1)

    async def scenario() -> None:
        await asyncio.gather(loading.preload(version(1)), loading.preload(version(1)))
        assert llm.calls == [("read", 1), ("host", 1)]
        await loading.load(version(1))
        assert llm.calls[2:] == [("add", 1)]

    asyncio.run(scenario())


def test_a_load_during_a_preload_waits_for_it(make: Make) -> None:
    llm, loading = make(1)

    async def scenario() -> None:
        await asyncio.gather(loading.preload(version(1)), loading.load(version(1)))
        assert llm.calls == [("read", 1), ("host", 1), ("add", 1)]

    asyncio.run(scenario())


def test_a_full_host_cache_keeps_nothing_half(make: Make) -> None:
    llm, loading = make(1)
    llm.host = False

    async def scenario() -> None:
        await loading.preload(version(1))
        assert llm.calls == [("read", 1), ("host", 1), ("remove", 1)]
        await loading.load(version(1))
        assert llm.calls[3:] == [("read", 1), ("add", 1)]

    asyncio.run(scenario())


def test_workers_that_cannot_read_beside_the_step(make: Make) -> None:
    llm, loading = make(0)

    async def scenario() -> None:
        await loading.preload(version(1))
        await loading.load(version(1))
        await loading.load(version(2))
        assert llm.calls == [("add", 1), ("add", 2)]

    asyncio.run(scenario())


def test_one_worker_of_two_fails(make: Make) -> None:
    llm, loading = make(2)
    llm.instant = None

    async def scenario() -> None:
        for bring in (loading.load, loading.preload):
            task = asyncio.create_task(bring(version(1)))
            while not llm.reading:
                await asyncio.sleep(0)
            llm.end(1, Outcome.READ, Outcome.FAILED)
            with pytest.raises(AdapterFailed):
                await task
            assert llm.calls[-2:] == [("read", 1), ("forget", 1)]
            assert await loading.unload(1) is False

    asyncio.run(scenario())


def test_reads_at_once_are_bounded_and_places_come_back(make: Make) -> None:
    llm, loading = make(1)
    llm.instant = None

    async def scenario() -> None:
        loads = [asyncio.create_task(loading.load(version(n))) for n in range(1, 4 * PLACES)]
        await asyncio.sleep(0)
        # Who waits goes away; the load goes on.
        loads[0].cancel()
        while len([call for call in llm.calls if call[0] == "add"]) < len(loads):
            await asyncio.sleep(0.001)
            for int_id in list(llm.reading):
                llm.end(int_id, Outcome.READ)
        await asyncio.gather(*loads[1:])
        assert llm.at_once == PLACES

    asyncio.run(scenario())


def test_an_engine_that_dies_during_a_read(make: Make) -> None:
    llm, loading = make(1)
    llm.instant = None

    async def scenario() -> None:
        task = asyncio.create_task(loading.load(version(1)))
        while not llm.reading:
            await asyncio.sleep(0)
        llm.dead = True
        with pytest.raises(Unavailable):
            await task

    asyncio.run(scenario())


def test_a_copy_comes_before_the_original(make: Make) -> None:
    llm, loading = make(1)
    loading.copy_of = lambda version: Path("/copy") if version.int_id == 1 else None

    async def scenario() -> None:
        await loading.load(version(1))
        await loading.load(version(2))

    asyncio.run(scenario())
    assert llm.paths == [["/copy", "/staged"], ["/staged"]]
