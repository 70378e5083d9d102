"""Several places at once: no two requests can wait for each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from python_backend.admission import Admission, Limits, Share
from python_backend.admission.together import Together
from python_backend.errors import InvalidArgument, Overloaded

LIMITS = Limits(seats=6, slots=2, reserve_slots=0, reserve_seats=0)


class House:
    def __init__(self, limits: Limits, shares: dict[str, Share] | None = None) -> None:
        self.admission = Admission(limits, shares)
        self.together = Together(self.admission)
        #: Adapters in the engine, and the most there ever were.
        self.most_adapters = self.most_seats = 0

    @asynccontextmanager
    async def inside(self, department: str, *adapters: int | None, left_s: float = 60.0) -> Any:
        with self.admission.place(department) as first:
            async with self.together.places(first, adapters, 10, 10, left_s) as places:
                scheduler = self.admission.scheduler
                flying = scheduler.limits.slots - scheduler.slots.free
                self.most_adapters = max(self.most_adapters, flying)
                self.most_seats = max(self.most_seats, scheduler.in_engine)
                yield places

    @asynccontextmanager
    async def one(self, department: str, adapter: int | None) -> Any:
        with self.admission.place(department) as place:
            await place.enter(adapter, 10, 10, 60.0)
            yield place

    def is_empty(self) -> bool:
        scheduler = self.admission.scheduler
        return (
            self.admission.total == scheduler.in_engine == scheduler.queued == 0
            and not scheduler.slots.held
            and scheduler.slots.free == scheduler.limits.slots
        )


def run(test: Callable[[House], Awaitable[None]], limits: Limits = LIMITS, **shares: Share) -> None:
    async def go() -> None:
        house = House(limits, shares)
        async with asyncio.timeout(10):
            await test(house)
        await asyncio.sleep(0)
        assert house.is_empty()

    asyncio.run(go())


def test_all_parts_are_inside_together() -> None:
    async def test(house: House) -> None:
        async with house.inside("fin", 1, 2, None) as places:
            assert len(places) == 3
            assert all(place.request.running for place in places)
            assert house.admission.scheduler.in_engine == 3
            assert not house.admission.scheduler.slots.held

    run(test)


def test_crossing_pairs_never_wait_for_each_other() -> None:
    async def test(house: House) -> None:
        async def ask(department: str, *adapters: int) -> None:
            async with house.inside(department, *adapters):
                await asyncio.sleep(0)

        pairs = [(1, 2), (2, 3), (3, 4), (4, 1), (2, 1), (4, 3)]
        await asyncio.gather(*(ask(f"d{n % 3}", *pairs[n % len(pairs)]) for n in range(120)))
        assert house.most_adapters == 2

    run(test)


def test_beside_streams_that_come_back_for_ever() -> None:
    """Who has its first slot gets the second, though others are always asked for."""

    async def test(house: House) -> None:
        done = asyncio.Event()

        async def again(department: str, adapter: int) -> None:
            while not done.is_set():
                async with house.one(department, adapter):
                    await asyncio.sleep(0.0005)

        crowd = [asyncio.create_task(again("svc", 7)) for _ in range(3)]
        crowd += [asyncio.create_task(again("qa", 8)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for _ in range(5):
            async with house.inside("fin", 1, 2):
                pass
        done.set()
        await asyncio.gather(*crowd)

    run(test)


def test_whoever_leaves_at_any_point_gives_back_all() -> None:
    async def test(house: House) -> None:
        draw = random.Random(3)

        async def ask(n: int) -> None:
            adapters = draw.sample([1, 2, 3, 4, None], draw.choice([1, 2]))
            async with house.inside(f"d{n % 4}", *adapters):
                await asyncio.sleep(draw.random() * 0.003)

        tasks = [asyncio.create_task(ask(n)) for n in range(100)]
        for task in draw.sample(tasks, 50):
            asyncio.get_running_loop().call_later(draw.random() * 0.03, task.cancel)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(e) for e in ended} <= {type(None), asyncio.CancelledError}

    run(test)


def test_an_engine_that_stands_still_paces_nobody() -> None:
    """Where a light department is about others enter a few with each step. The engine takes no
    step for a request that is still gathering."""

    async def test(house: House) -> None:
        async with house.one("svc", None) as place:
            place.produced(100)
        async with house.inside("fin", 1, 2, None) as places:
            assert all(place.request.running for place in places)

    limits = Limits(seats=6, slots=2, reserve_slots=0, burst=1.0)
    run(test, limits)


@pytest.mark.parametrize(
    ("limits", "shares", "adapters"),
    [
        (Limits(seats=8, slots=2), {}, (1, 2)),  # one of the two is kept for others
        (Limits(seats=8, slots=3), {}, (1, 2, 3)),
        (Limits(seats=2, slots=8), {}, (1, 2, None)),
        (LIMITS, {"fin": Share(concurrency=1)}, (1, None)),
    ],
)
def test_what_can_never_be_inside_together(
    limits: Limits, shares: dict[str, Share], adapters: tuple[int | None, ...]
) -> None:
    async def test(house: House) -> None:
        with pytest.raises(InvalidArgument, match="distribution needs more"):
            async with house.inside("fin", *adapters):
                pass

    run(test, limits, **shares)


def test_what_just_fits() -> None:
    async def test(house: House) -> None:
        async with house.one("svc", 9), house.inside("fin", 1, 2, None) as places:
            assert len(places) == 3

    run(test, Limits(seats=8, slots=3), fin=Share(concurrency=3))


def test_no_room_in_the_queue_for_all_parts() -> None:
    async def test(house: House) -> None:
        with pytest.raises(Overloaded):
            async with house.inside("fin", 1, 2):
                pass

    run(test, Limits(seats=6, slots=2, reserve_slots=0, max_pending=1))
