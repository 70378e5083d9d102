"""What holds whatever comes: bounds on waiting, fairness, no idle seat, nothing left behind."""

from __future__ import annotations

import dataclasses
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.admission.department import Request
from python_backend.admission.limits import Limits, Share
from tests.unit.python_backend.admission.world import World

LONGEST, PROMPT = 6, 3
DEPARTMENTS = ("fin", "svc", "qa")

limits = st.builds(
    Limits,
    seats=st.integers(1, 6),
    slots=st.integers(1, 4),
    reserve_seats=st.integers(0, 2),
    reserve_slots=st.integers(0, 2),
    patience=st.integers(0, 8),
    affinity=st.integers(-4, 8),
    burst=st.sampled_from([math.inf, 1.0, 2.0]),
    memory_s=st.sampled_from([0.0, 5.0, 600.0]),
)
sent = st.tuples(
    st.sampled_from(DEPARTMENTS),
    st.one_of(st.none(), st.integers(1, 7)),
    st.integers(1, LONGEST),
)
#: Send, take one step of the engine, or cancel the n-th request that is there.
acts = st.lists(st.one_of(sent, st.just("step"), st.integers(0, 30)), max_size=80)


@settings(deadline=None, max_examples=200)
@given(limits, acts, st.integers(1, 3))
def test_nothing_is_left_behind(limits: Limits, acts: list[object], seats: int) -> None:
    """``World`` compares every account with a plain count after each act."""
    world = World(limits)
    for act in acts:
        if isinstance(act, tuple):
            department, adapter, length = act
            world.send(department, adapter, length=length, seats=seats, max_tokens=LONGEST)
        elif act == "step":
            world.admit()
            world.step()
        else:
            there = [*world.waiting, *world.running]
            if there:
                world.end(there[int(str(act)) % len(there)])
    world.finish()


@settings(deadline=None, max_examples=150)
@given(limits, st.lists(sent, min_size=1, max_size=60))
def test_no_seat_is_idle_that_somebody_could_take(
    limits: Limits, requests: list[tuple[str, int | None, int]]
) -> None:
    """Apart from the reserve, and from a slot that is being emptied for one who is overdue."""
    world = World(dataclasses.replace(limits, burst=math.inf))
    for department, adapter, length in requests:
        world.send(department, adapter, length=length)
        world.admit()
        assert world.could_enter() == []
    while world.running:
        world.step()
        world.admit()
        assert world.could_enter() == []
    world.finish()


@settings(deadline=None, max_examples=100)
@given(
    limits,
    st.lists(sent, min_size=2, max_size=24),
    st.lists(st.floats(0.25, 4), min_size=3, max_size=3),
)
def test_nobody_waits_for_ever(
    limits: Limits, streams: list[tuple[str, int | None, int]], weights: list[float]
) -> None:
    """Closed loops that never pause: each request enters within a number of admissions.

    The bound: its turn by its department's share, corrected for how much less a request can cost
    than another; then patience for each round of slots; then, for each line of requests that may
    be before it, the admissions that fit into the emptying of one slot.
    """
    shares = {name: Share(weight) for name, weight in zip(DEPARTMENTS, weights, strict=True)}
    world = World(limits, shares)
    bounds: dict[Request, float] = {}
    dearest, cheapest = PROMPT + 2 * LONGEST, PROMPT + 2
    lines = len({stream[:2] for stream in streams})
    per_emptying = (limits.seats + limits.reserve_seats) * LONGEST
    total = sum(weights)

    def send(department: str, adapter: int | None, length: int) -> None:
        request = world.send(department, adapter, length=length, tokens=PROMPT)
        ahead = world.scheduler.department(department).queued
        turn = (ahead + limits.seats + 2) * total / shares[department].weight
        bounds[request] = (
            turn * dearest / cheapest
            + limits.patience * (2 + lines // limits.slots)
            + max(0, limits.affinity)
            + (lines + 1) * per_emptying * max(1.0, total / min(weights))
        )

    for stream in streams:
        send(*stream)
    world.on_end = lambda r: send(r.department, r.adapter, world.lengths[r])
    for _ in range(300):
        world.admit()
        world.step()
        for request in world.waiting:
            waited = world.scheduler.admissions - world.began[request]
            assert waited <= bounds[request]
    for request, waited in world.waits.items():
        assert waited <= bounds[request]


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 8),
    st.lists(st.floats(0.2, 5), min_size=2, max_size=3),
    st.lists(st.integers(1, LONGEST), min_size=3, max_size=30),
)
def test_service_follows_the_weights(seats: int, weights: list[float], lengths: list[int]) -> None:
    """Between departments that always have work waiting, service over weight stays together.

    It differs by what may be under way of each: all seats, at the dearest request's cost.
    """
    names = DEPARTMENTS[: len(weights)]
    shares = {name: Share(weight) for name, weight in zip(names, weights, strict=True)}
    world = World(Limits(seats, 1, reserve_seats=0), shares)
    number = 0

    def send(department: str) -> None:
        nonlocal number
        number += 1
        length = lengths[number % len(lengths)]
        world.send(department, length=length, tokens=PROMPT, max_tokens=LONGEST)

    for name in names:
        for _ in range(seats + 2):
            send(name)
    world.on_end = lambda request: send(request.department)
    bound = 2 * (seats + 1) * (PROMPT + 2 * LONGEST) / min(weights)
    for _ in range(150):
        world.admit()
        world.step()
        had = [world.service[name] / shares[name].weight for name in names]
        assert max(had) - min(had) <= bound


def test_base_is_served_between_adapters_that_are_overdue_at_once() -> None:
    """One seat and no patience: each request for an adapter is overdue when it arrives."""
    world = World(Limits(1, 1, reserve_seats=0, reserve_slots=0, patience=0))
    world.on_end = lambda r: world.send(r.department, r.adapter, length=world.lengths[r])
    world.send("fin", None, length=1)
    world.send("svc", 1, length=1)
    world.run(40)
    assert {name: [r.department for r in world.entered].count(name) for name in ("fin", "svc")} == {
        "fin": 20,
        "svc": 20,
    }
