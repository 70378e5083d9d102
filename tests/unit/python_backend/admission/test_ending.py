"""Who has one token left makes room: the successor is on its way while the last step runs."""

from __future__ import annotations

import asyncio

from python_backend.admission import Admission, Limits, Share
from tests.unit.python_backend.admission.test_scheduler import limits
from tests.unit.python_backend.admission.world import World


def one_left(world: World, steps: int) -> None:
    """All that may enter does; then so many steps."""
    world.admit()
    for _ in range(steps):
        world.step()


def test_seat_and_slot_are_given_up_one_token_before_the_end() -> None:
    world = World(limits(seats=1, slots=1))
    first = world.send("fin", 1, length=4)
    second = world.send("svc", 2, length=4)
    one_left(world, 2)
    assert world.admit() == []
    world.step()
    assert first in world.running
    assert world.admit() == [second]
    world.step()
    assert first not in world.running
    assert world.scheduler.in_engine == 1
    world.finish()


def test_an_answer_of_one_token_is_never_one_before_its_end() -> None:
    world = World(limits(seats=1))
    world.send("fin", length=1)
    world.send("fin", length=1)
    world.admit()
    assert world.scheduler.ending == 0
    world.finish()


def test_several_sequences_keep_their_seats_to_the_end() -> None:
    world = World(limits(seats=2))
    world.send("fin", length=3, seats=2, max_tokens=3)
    world.send("fin", length=3)
    one_left(world, 2)
    assert world.scheduler.ending == 0
    assert world.admit() == []
    world.finish()


def test_one_that_stops_early_gives_up_at_its_end() -> None:
    world = World(limits(seats=1))
    world.send("fin", length=3, max_tokens=100)
    later = world.send("fin", length=3)
    one_left(world, 2)
    assert world.admit() == []
    world.step()
    assert world.admit() == [later]
    world.finish()


def test_cancelled_in_its_last_step_nothing_is_freed_twice() -> None:
    world = World(limits(seats=1, slots=1))
    first = world.send("fin", 1, length=3)
    world.send("fin", 1, length=3)
    one_left(world, 2)
    world.admit()
    world.end(first)
    assert world.scheduler.in_engine == 1
    assert not world.scheduler.slots.free
    world.finish()


def test_a_departments_own_bound_counts_it_to_the_end() -> None:
    world = World(limits(seats=4), {"fin": Share(concurrency=1)})
    world.send("fin", length=3)
    world.send("fin", length=3)
    one_left(world, 2)
    assert world.scheduler.ending == 1
    assert world.admit() == []
    world.finish()


def test_what_is_kept_for_a_department_stays_kept_behind_its_last_step() -> None:
    """Its slot is free from then on: others must not have it, it may be back at once."""
    world = World(limits(seats=4, slots=2, reserve_seats=1, reserve_slots=1))
    for adapter in (1, 2):
        world.send("many", adapter, length=9)
        world.send("many", adapter, length=9)
    world.send("few", 7, length=3)
    one_left(world, 2)
    assert world.scheduler.ending == 1
    assert world.admit() == []  # Not adapter 2, though a slot and three seats are free.
    back = world.send("few", 7, length=3)
    assert world.admit() == [back]
    world.finish()


def test_who_waits_is_woken_by_the_last_token_but_one() -> None:
    async def main() -> None:
        admission = Admission(Limits(seats=1, slots=1, reserve_seats=0, reserve_slots=0))
        with admission.place("fin") as first, admission.place("fin") as second:
            await first.enter(None, tokens=5, max_tokens=3)
            waiting = asyncio.create_task(second.enter(None, tokens=5, max_tokens=3))
            first.produced(1)
            await asyncio.sleep(0.01)
            assert not waiting.done()
            first.produced(1)
            async with asyncio.timeout(5):
                await waiting
        assert admission.scheduler.in_engine == admission.scheduler.ending == 0

    asyncio.run(main())
