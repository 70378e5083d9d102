"""Priorities and evictions: the formula's values, exact edges, and what never goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.adapters.tiering import strained
from python_backend.adapters.tiers import Heat, Held, Plan, make_room, wishes
from python_backend.breaker import State
from python_backend.breaker_settings import BreakerSettings
from python_backend.guard import SIGNALS
from python_backend.tier_settings import TierSettings

H = 100.0


def test_the_formula() -> None:
    heat = Heat(H)
    for at in (0.0, 0.0, 100.0):
        heat.note("a", at)
    heat.note("b", 100.0)
    # At 200: f(a) = 2·1/4 + 1/2 = 1, f(b) = 1/2; both were last used one half-life ago.
    found = heat.priorities(["a", "b", "c"], 200.0)
    assert found == pytest.approx({"a": 0.7 + 0.15, "b": 0.35 + 0.15, "c": 0.0})


def test_the_one_just_used_alone_has_all() -> None:
    heat = Heat(H)
    heat.note("a", 5.0)
    assert heat.priorities(["a"], 5.0) == {"a": 1.0}
    assert heat.priorities([], 5.0) == {}
    assert heat.priorities(["a"], 1.0) == {"a": 1.0}  # A clock that went back.


def test_forgetting() -> None:
    heat = Heat(H)
    heat.note("a", 0.0)
    heat.keep_only(["b"])
    assert heat.priorities(["a"], 0.0) == {"a": 0.0}


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1e6)), min_size=1, max_size=30).map(
        lambda uses: sorted(uses, key=lambda use: use[1])
    ),
    st.floats(0, 1e6),
)
def test_priorities_stay_in_bounds_and_order(uses: list[tuple[str, float]], later: float) -> None:
    heat = Heat(H)
    for name, at in uses:
        heat.note(name, at)
    now = uses[-1][1] + later
    found = heat.priorities("abcd", now)
    assert all(0.0 <= value <= 1.0 + 1e-9 for value in found.values())
    # One more use never lowers an adapter, nor raises another one.
    heat.note("a", now)
    again = heat.priorities("abcd", now)
    assert again["a"] == pytest.approx(1.0) or again["a"] >= found["a"] - 1e-9
    assert all(again[name] <= found[name] + 1e-9 for name in "bcd")


def held(int_id: int, size: int, priority: float = 0.0, **more: object) -> Held:
    return Held(int_id, size, priority, **more)  # type: ignore[arg-type]


def test_what_somebody_waits_for_goes_last_and_does_go() -> None:
    there = [held(1, 100, 0.1, queued=True), held(2, 100, 0.9), held(3, 100, 0.9, kept=True)]
    assert make_room(there, 100, 300) == Plan((2,), True)
    assert make_room(there, 100, 200) == Plan((2, 1), True)
    assert make_room(there, 100, 100) == Plan((2, 1), False)
    # A large one that waits makes the small ones before it needless: it stays all the same.
    there = [held(1, 200, 0.1, queued=True), held(2, 50, 0.9), held(3, 50, 0.9)]
    assert make_room(there, 50, 300) == Plan((2,), True)


@pytest.mark.parametrize(
    "budget, expected",
    [
        (99, Plan((1,), False)),  # One byte less than one adapter: it cannot be had.
        (100, Plan((1,), True)),
        (101, Plan((1,), True)),
        (199, Plan((1,), True)),
        (200, Plan((), True)),
    ],
)
def test_the_budget_is_exact(budget: int, expected: Plan) -> None:
    assert make_room([held(1, 100)], 100, budget) == expected
    assert make_room([], 100, budget).fits is (budget >= 100)


def test_the_count_is_exact() -> None:
    two = [held(1, 1, 0.5), held(2, 1, 0.1)]
    assert make_room(two, 1, 100, max_count=3) == Plan((), True)
    assert make_room(two, 1, 100, max_count=2) == Plan((2,), True)
    assert make_room(two, 1, 100, max_count=0) == Plan((2, 1), False)
    assert make_room(two, 0, 100, need_count=0, max_count=2) == Plan((), True)


def test_lowest_priority_then_lowest_reload_cost() -> None:
    three = [held(1, 10, 0.2), held(2, 10, 0.1, reload_cost=9.0), held(3, 10, 0.1, reload_cost=1.0)]
    assert make_room(three, 10, 30).evict == (3,)
    assert make_room(three, 20, 30).evict == (3, 2)
    assert make_room(three, 30, 30).evict == (3, 2, 1)


def test_nothing_goes_needlessly() -> None:
    assert make_room([held(1, 1, 0.1), held(2, 50, 0.2)], 50, 51).evict == (2,)


def test_what_is_kept_and_what_is_worth_more() -> None:
    two = [held(1, 50, 0.0, kept=True), held(2, 50, 0.4)]
    assert make_room(two, 60, 100) == Plan((2,), False)
    assert make_room(two, 50, 100, below=0.4) == Plan((), False)
    assert make_room(two, 50, 100, below=0.5) == Plan((2,), True)


sizes = st.integers(0, 40)
adapters = st.lists(
    st.tuples(sizes, st.sampled_from([0.0, 0.3, 0.6]), st.sampled_from([0.0, 1.0]), st.booleans()),
    max_size=8,
).map(lambda rows: [Held(i, *row) for i, row in enumerate(rows)])


@given(adapters, sizes, st.integers(0, 200), st.one_of(st.none(), st.integers(0, 9)))
def test_plans(found: list[Held], need: int, budget: int, max_count: int | None) -> None:
    plan = make_room(found, need, budget, max_count=max_count)
    gone = set(plan.evict)
    assert len(gone) == len(plan.evict)
    assert not any(one.kept for one in found if one.int_id in gone)

    def fits(left: list[Held]) -> bool:
        within = sum(one.size_bytes for one in left) + need <= budget
        return within and (max_count is None or len(left) + 1 <= max_count)

    left = [one for one in found if one.int_id not in gone]
    assert plan.fits is fits(left)
    if not plan.fits:
        assert gone == {one.int_id for one in found if not one.kept}
    for int_id in gone if plan.fits else ():
        assert not fits([one for one in found if one.int_id not in gone - {int_id}])


def test_wishes() -> None:
    ready, heat = ["a", "b", "c"], {"b": 0.5, "c": 0.1}
    assert wishes("all", ready, [], heat) == ["b", "c", "a"]
    assert wishes("all", ready, ["a"], heat) == ["a", "b", "c"]
    assert wishes(2, ready, ["c", "gone"], heat) == ["c", "b"]
    assert wishes(0, ready, [], heat) == []
    assert wishes(("c", "x", "a", "c"), ready, ["b"], heat) == ["c", "a"]


@pytest.mark.parametrize("warm", [-1, "some", ["Bad Name"], True, 1.5])
def test_warm_is_checked(warm: object) -> None:
    with pytest.raises(ValueError):
        TierSettings.model_validate({"warm": warm})


@pytest.mark.parametrize("warm", [0, 7, "all", ["fin_risk_v1"]])
def test_warm_takes(warm: object) -> None:
    found = TierSettings.model_validate({"warm": warm}).warm
    assert found == (tuple(warm) if isinstance(warm, list) else warm)


@pytest.mark.parametrize(
    "signal, state, expected",
    [
        ("switch_rate", State.WARNING, True),
        ("fragmentation", State.WARNING, True),
        ("load_latency", State.WARNING, False),
        ("load_latency", State.OPEN, True),
        ("routing", State.OPEN, False),
    ],
)
def test_what_stops_warming(signal: str, state: State, expected: bool) -> None:
    states = dict.fromkeys(SIGNALS, State.CLOSED)
    assert not strained(states, BreakerSettings())
    assert strained({**states, signal: state}, BreakerSettings()) is expected
    if signal != "routing":
        shown = BreakerSettings.model_validate({signal: {"enforce": False}})
        assert not strained({**states, signal: state}, shown)
