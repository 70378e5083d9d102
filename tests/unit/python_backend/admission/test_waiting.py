"""The wait for a turn: whatever happens in it, what was taken is given back once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from python_backend.admission import Admission, Limits, Place, Share
from python_backend.errors import InvalidArgument, Overloaded


def run(test: Callable[[Admission], Coroutine[Any, Any, None]], **options: Any) -> None:
    shares = options.pop("shares", {})
    bounds = {"seats": 2, "slots": 2, "reserve_seats": 0, "reserve_slots": 0, **options}

    async def main() -> None:
        admission = Admission(Limits(**bounds), shares)
        async with asyncio.timeout(20):
            await test(admission)
            await asyncio.sleep(0)
        empty(admission)

    asyncio.run(main())


def empty(admission: Admission) -> None:
    scheduler = admission.scheduler
    assert (admission.under_way, admission.total, admission.bounds.tokens) == ({}, 0, 0)
    assert scheduler.queued == scheduler.in_engine == 0
    assert scheduler.slots.free == admission.scheduler.limits.slots


class Caller:
    """A request that stays in the engine until it is told to end."""

    def __init__(self, admission: Admission, department: str = "fin", **options: Any) -> None:
        self.go, self.inside = asyncio.Event(), False
        self.task = asyncio.create_task(self._run(admission, department, options))

    async def _run(self, admission: Admission, department: str, options: dict[str, Any]) -> None:
        with admission.place(department, options.pop("seats", 1)) as place:
            options = {"adapter": None, "tokens": 5, "max_tokens": 5, **options}
            await place.enter(**options)
            self.inside = True
            await self.go.wait()
            place.produced(3)

    async def end(self) -> None:
        self.go.set()
        await self.task


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_turn_comes_when_another_ends() -> None:
    async def test(admission: Admission) -> None:
        first, second, third = (Caller(admission) for _ in range(3))
        await turn()
        assert (first.inside, second.inside, third.inside) == (True, True, False)
        assert admission.under_way == {"fin": 3}
        await first.end()
        await turn()
        assert third.inside
        await second.end()
        await third.end()

    run(test)


def test_cancelled_in_the_queue() -> None:
    async def test(admission: Admission) -> None:
        callers = [Caller(admission) for _ in range(5)]
        await turn()
        for caller in callers[2:4]:
            caller.task.cancel()
        await asyncio.wait([caller.task for caller in callers[2:4]])
        assert admission.scheduler.queued == 1
        callers[0].go.set()
        await turn()
        assert callers[4].inside
        for caller in callers:
            caller.go.set()
        await asyncio.gather(*(c.task for c in callers), return_exceptions=True)

    run(test)


def test_cancelled_in_the_moment_its_turn_comes() -> None:
    async def test(admission: Admission) -> None:
        first, second, waiting, last = (Caller(admission) for _ in range(4))
        await turn()
        first.go.set()
        await first.task
        waiting.task.cancel()  # Its turn is decided on in the next turn of the loop, or was.
        await asyncio.wait([waiting.task])
        await turn()
        assert last.inside
        await second.end()
        await last.end()

    run(test)


def test_cancelled_after_its_turn_was_given() -> None:
    async def test(admission: Admission) -> None:
        first, second, waiting, last = (Caller(admission) for _ in range(4))
        await turn()
        first.go.set()
        await asyncio.sleep(0)
        admission._pump()
        waiting.task.cancel()
        await asyncio.wait([waiting.task])
        await turn()
        assert last.inside
        for caller in (first, second, last):
            await caller.end()

    run(test)


def test_bounds_come_before_any_work() -> None:
    async def test(admission: Admission) -> None:
        with admission.place("fin", 2):
            with pytest.raises(Overloaded), admission.place("fin", 1):
                pytest.fail("there was a place")
            with admission.place("svc", 1), pytest.raises(Overloaded), admission.place("svc", 1):
                pytest.fail("there was a place")

    run(test, max_pending=3, max_pending_per_department=2)


def test_tokens_per_minute_are_taken_at_most_and_given_back() -> None:
    async def test(admission: Admission) -> None:
        caller = Caller(admission, tokens=20, max_tokens=30)
        await turn()
        with admission.place("fin") as place, pytest.raises(Overloaded) as caught:
            await place.enter(None, 30, 30)
        assert caught.value.retry_after is not None
        await caller.end()  # It has used 23 of 50.
        with admission.place("fin") as place:
            await place.enter(None, 30, 30)
        with admission.place("fin") as place, pytest.raises(InvalidArgument):
            await place.enter(None, 50, 51)

    run(test, shares={"fin": Share(tokens_per_minute=100)})


def test_a_request_that_never_entered_has_used_nothing() -> None:
    async def test(admission: Admission) -> None:
        running = [Caller(admission, "svc") for _ in range(2)]
        await turn()
        for _ in range(5):
            waiting = Caller(admission, tokens=50, max_tokens=50)
            await turn()
            assert not waiting.inside and not waiting.task.done()
            waiting.task.cancel()
            await asyncio.wait([waiting.task])
        for caller in running:
            await caller.end()

    run(test, shares={"fin": Share(tokens_per_minute=100)})


def test_a_queue_that_is_longer_than_the_deadline() -> None:
    async def test(admission: Admission) -> None:
        now_s = 0.0
        admission._clock = lambda: now_s
        callers = [Caller(admission) for _ in range(60)]
        await turn()
        for caller in callers[:38]:
            now_s += 1.0
            await caller.end()
            await turn()
        # 20 wait, and one enters each second.
        with admission.place("fin") as place, pytest.raises(Overloaded) as caught:
            await place.enter(None, 5, 5, left_s=5.0)
        assert caught.value.retry_after == 20
        patient = Caller(admission, left_s=30.0)
        await turn()
        assert not patient.task.done()
        for caller in [*callers, patient]:
            await caller.end()

    run(test)


def test_random_ends_leave_nothing() -> None:
    dice = random.Random(7)

    async def one(admission: Admission) -> None:
        with admission.place(dice.choice(["fin", "svc"]), dice.randint(1, 3)) as place:
            await asyncio.sleep(dice.choice([0, 0.001]))
            await place.enter(dice.choice([None, 1, 2, 3, 4]), 5, 5)
            await _work(place)

    async def _work(place: Place) -> None:
        for _ in range(dice.randint(0, 4)):
            await asyncio.sleep(0.0005)
            place.produced(1)
        if dice.random() < 0.2:
            raise OSError

    async def test(admission: Admission) -> None:
        tasks = []
        for _ in range(400):
            tasks.append(asyncio.create_task(one(admission)))
            if dice.random() < 0.3:
                await asyncio.sleep(0.0005)
            if dice.random() < 0.4:
                dice.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with admission.place("fin") as place:  # the next one is served at once
            await place.enter(1, 5, 5)

    run(test, seats=4)
