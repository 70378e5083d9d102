"""How many enter with one step while a department has one request at most."""

from __future__ import annotations

from python_backend.admission.limits import Limits
from tests.unit.python_backend.admission.world import World


def _world(burst: float) -> World:
    """16 seats full of answers that end together, 32 tokens each; ``svc`` has been here."""
    world = World(Limits(16, 4, reserve_seats=1, burst=burst))
    world.send("svc", length=32)
    world.run(33)
    for _ in range(48):
        world.send("fin", length=32)
    # The steady rate is 16 seats over 32 tokens: half a request with each step.
    return world


def test_as_many_enter_with_a_step_as_burst_allows() -> None:
    world = _world(burst=4)
    entered = []
    for _ in range(10):
        entered.append(len(world.admit()))
        world.step()
    assert entered == [2] * 8 + [0, 0]


def test_at_least_one_enters_with_each_step() -> None:
    world = _world(burst=1)
    assert [len(world.admit()), world.step(), len(world.admit())] == [1, [], 1]


def test_a_department_with_nothing_in_the_engine_is_not_held_back() -> None:
    world = _world(burst=2)
    world.admit()
    newcomer = world.send("svc")
    assert world.admit() == [newcomer]
    assert world.scheduler.held
    world.step()
    # Its step is its own; the others go on with the next.
    assert len(world.admit()) == 1


def test_nobody_is_held_back_where_every_department_has_more_than_one() -> None:
    world = _world(burst=2)
    for _ in range(2):
        world.send("svc", length=32)
    assert len(world.admit()) == 16


def test_one_that_left_before_its_step_holds_nobody_back() -> None:
    world = _world(burst=1)
    (first,) = world.admit()
    assert world.admit() == []
    world.end(first)
    assert len(world.admit()) == 1


def test_without_news_of_steps_nobody_is_held_back_for_long() -> None:
    world = _world(burst=1)
    assert len(world.admit()) == 1
    world.now_s += 0.9
    assert world.admit() == []
    world.now_s += 0.2
    assert len(world.admit()) == 15
