"""Switches while they are rationed: exactly the rate, everybody in the end, residents at once."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.admission import Admission, Limits
from python_backend.admission.ration import Ration
from python_backend.errors import BreakerOpen
from tests.unit.python_backend.admission.test_waiting import Caller, turn
from tests.unit.python_backend.admission.world import World

RATE = 2.0
LIMITS = Limits(8, 4, reserve_seats=0, reserve_slots=0, patience=8, affinity=8)


class Clocked(World):
    """A step takes a twentieth of a second; ``switched`` has the times of switches."""

    def __init__(self, limits: Limits, rate: float | None) -> None:
        super().__init__(limits)
        self.scheduler.ration = None if rate is None else Ration(rate, 0.0)
        self.switched: list[float] = []

    def turn(self) -> None:
        before = self.scheduler.switches
        self.admit()
        self.switched += [self.now_s] * (self.scheduler.switches - before)
        now_s = self.now_s
        self.step()
        self.now_s = round(now_s + 0.05, 6)

    def run_for(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.05)):
            self.turn()


def crowded(rate: float | None) -> Clocked:
    """Two departments whose callers go through twenty adapters without end."""
    world = Clocked(LIMITS, None)
    adapters = itertools.cycle(range(1, 21))

    def send(department: str) -> None:
        world.send(department, next(adapters), length=2)

    for _ in range(40):
        send("fin")
        send("svc")
    world.on_end = lambda request: send(request.department)
    world.run_for(1)  # Until every slot has been used.
    world.switched.clear()
    world.scheduler.ration = None if rate is None else Ration(rate, world.now_s)
    return world


def test_while_somebody_waits_it_is_the_rate_exactly() -> None:
    free = crowded(None)
    free.run_for(20)
    assert len(free.switched) / 20 > 2 * RATE, "the crowd would switch more often"
    world = crowded(RATE)
    world.run_for(60)
    assert 60 * RATE <= len(world.switched) <= 60 * RATE + 2
    for second in range(1, 51):
        seen = sum(second <= at < second + 10 for at in world.switched)
        assert abs(seen - 10 * RATE) <= 2, second


def test_nobody_starves_and_residents_go_on() -> None:
    world = crowded(RATE)
    world.run_for(30)
    assert {r.adapter for r in world.entered} == set(range(1, 21))
    world = Clocked(LIMITS, None)
    for adapter in range(1, 5):
        world.send("fin", adapter, length=1)
    world.run_for(0.1)
    world.scheduler.ration = Ration(RATE, world.now_s)
    assert (len(world.entered), world.switched) == (4, [])
    # All there is asked for what lies in slots: no ration holds it up.
    for number in range(400):
        world.send("fin", 1 + number % 4, length=1)
    world.run_for(6)
    assert (len(world.waiting), world.switched) == (0, [])


def test_base_needs_no_switch_and_a_slot_that_is_empty_now_does() -> None:
    world = Clocked(LIMITS, 0.01)
    for adapter in (1, 2, 3, 4, None, None):
        world.send("fin", adapter, length=1)
    # One was due, one is kept for it.
    assert [r.adapter for r in world.admit()] == [1, None, None]


@given(st.floats(0.1, 20), st.lists(st.floats(-3, 3), max_size=200))
def test_never_more_whatever_the_clock_does(rate: float, passes: list[float]) -> None:
    ration, now_s, newest_s, taken = Ration(rate, 0.0), 0.0, 0.0, 0
    backwards = 0
    for passed in passes:
        now_s += passed
        backwards += passed < 0
        newest_s = max(newest_s, now_s)
        if not ration.due_s(now_s):
            ration.take(now_s)
            taken += 1
        assert ration.due_s(now_s) <= 1 / rate + 1e-6
    walked = sum(p for p in passes if p > 0)
    assert taken <= rate * walked + 2 + 2 * backwards


def test_the_next_is_woken_when_its_switch_is_due_and_deadlines_are_kept() -> None:
    async def main() -> None:
        clock = [0.0]
        admission = Admission(
            Limits(8, 1, reserve_seats=0, reserve_slots=0, patience=0), clock=lambda: clock[0]
        )
        first = Caller(admission, adapter=1)
        await turn()
        await first.end()
        admission.ration_switches(100.0)
        await turn()
        second = Caller(admission, adapter=2)
        await turn()
        await second.end()
        third, fourth = (Caller(admission, adapter=n) for n in (3, 4))
        await turn()
        # The ration keeps one that was not taken, and then no more.
        waiting = [caller for caller in (third, fourth) if not caller.inside]
        assert waiting and admission.scheduler.ration is not None
        admission.ration_switches(0.5)
        with pytest.raises(BreakerOpen) as caught, admission.place("fin") as place:
            await place.enter(5, 5, 5, 1.0)
        assert caught.value.retry_after == 2 * len(waiting)
        assert admission.ration_refusals == 1
        admission.ration_switches(100.0)
        async with asyncio.timeout(20):
            for caller in (third, fourth):
                while not caller.inside:
                    clock[0] += 0.01
                    await asyncio.sleep(0.005)
                await caller.end()
        admission.ration_switches(None)
        assert admission.scheduler.ration is None

    asyncio.run(main())


def test_a_rate_that_changes_gives_nothing_away() -> None:
    ration = Ration(1.0, 0.0)
    taken = 0
    for tick in range(200):
        ration.rate = 1.0 + 0.001 * (tick % 2)
        if not ration.due_s(tick / 10):
            ration.take(tick / 10)
            taken += 1
    assert taken <= 22
