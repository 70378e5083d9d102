"""The breaker against the table, border by border."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from python_backend.breaker import Breaker, Permit, Rule, State
from python_backend.breaker_settings import BreakerSettings

DEFAULT = BreakerSettings()
SWITCHES = DEFAULT.switch_rate.rule()
FRAGMENTS = DEFAULT.fragmentation.rule()
LOADS = DEFAULT.load_latency.rule()
ROUTING = DEFAULT.routing.rule()
CLOSED, WARNING, OPEN, HALF_OPEN = State


def test_the_defaults_are_the_table() -> None:
    assert (SWITCHES.warning, SWITCHES.open, SWITCHES.close, SWITCHES.hold_s) == (3, 5, 2, 30)
    assert (FRAGMENTS.warning, FRAGMENTS.open) == (0.20, 0.30)
    assert (FRAGMENTS.close, FRAGMENTS.hold_s) == (0.15, 60)
    assert (LOADS.warning, LOADS.open, LOADS.close, LOADS.in_a_row) == (0.05, 0.1, 0.03, 10)
    assert (ROUTING.warning, ROUTING.open, ROUTING.in_a_row) == (0.01, 0.03, 100)


@pytest.mark.parametrize("rule", [SWITCHES, FRAGMENTS, LOADS, ROUTING])
def test_opening_border_by_border(rule: Rule) -> None:
    def first(value: float) -> State:
        return Breaker(rule).value(value, 0)

    assert first(math.nextafter(rule.warning, 0)) is CLOSED
    assert first(rule.warning) is WARNING
    assert first(math.nextafter(rule.open, 0)) is WARNING
    assert first(rule.open) is OPEN
    assert first(math.inf) is OPEN
    assert first(math.nan) is CLOSED


@pytest.mark.parametrize("rule", [SWITCHES, FRAGMENTS])
@pytest.mark.parametrize("high", ["warning", "open"])
def test_closing_after_a_time_below(rule: Rule, high: str) -> None:
    breaker = Breaker(rule)
    breaker.value(getattr(rule, high), 0)
    before = breaker.state
    below = math.nextafter(rule.close, 0)
    assert breaker.value(rule.close, 1) is before, "closing is strictly below"
    waiting = HALF_OPEN if before is OPEN else WARNING
    assert breaker.value(below, 10) is waiting
    assert breaker.value(below, math.nextafter(10 + rule.hold_s, 0)) is waiting
    assert breaker.value(below, 10 + rule.hold_s) is CLOSED


def test_one_value_that_is_not_below_starts_the_time_anew() -> None:
    breaker = Breaker(SWITCHES)
    breaker.value(5, 0)
    breaker.value(1, 1)
    assert breaker.value(2, 30) is HALF_OPEN
    assert breaker.value(1, 31) is HALF_OPEN
    assert breaker.value(1, 60.9) is HALF_OPEN
    assert breaker.value(1, 61) is CLOSED
    assert breaker.transitions == {CLOSED: 1, WARNING: 0, OPEN: 1, HALF_OPEN: 1}


@pytest.mark.parametrize("rule", [LOADS, ROUTING])
def test_closing_after_so_many_in_a_row(rule: Rule) -> None:
    breaker = Breaker(rule)
    breaker.value(rule.open, 0)
    for _ in range(rule.in_a_row - 1):
        assert breaker.value(0, 1) is OPEN
    breaker.row_broken()
    for _ in range(rule.in_a_row - 1):
        assert breaker.value(0, 1) is OPEN
    assert breaker.value(0, 1) is CLOSED


def test_no_flapping_at_any_border() -> None:
    for border in (SWITCHES.close, SWITCHES.warning, SWITCHES.open):
        breaker = Breaker(SWITCHES)
        for second in range(200):
            breaker.value(border + (0.001 if second % 2 else -0.001), second)
        assert sum(breaker.transitions.values()) <= 2, border
    breaker = Breaker(SWITCHES)
    breaker.value(5, 0)
    for second in range(200):
        breaker.value(2 + (0.001 if second % 2 else -0.001), second)
    assert (breaker.state, sum(breaker.transitions.values())) == (HALF_OPEN, 2)


def test_permits_are_leased() -> None:
    breaker = Breaker(ROUTING)
    assert breaker.permit(0) == Permit()
    breaker.value(1, 0)
    assert breaker.retry_after_s(1) == 4
    assert breaker.permit(4.9) is None
    leases = [breaker.permit(5) for _ in range(ROUTING.probes)]
    assert all(permit is not None for permit in leases)
    assert breaker.state is HALF_OPEN
    assert breaker.permit(5) is None
    assert leases[0] is not None
    breaker.done(leases[0])
    breaker.done(leases[0])
    assert breaker.permit(5) is not None
    assert breaker.permit(5) is None
    # Those that never come back end by themselves.
    assert breaker.permit(5 + ROUTING.lease_s) is not None
    assert breaker.value(1, 70) is OPEN
    assert breaker.permit(71) is None


def test_a_permit_of_an_earlier_time_gives_nothing_back() -> None:
    breaker = Breaker(ROUTING)
    breaker.value(1, 0)
    old = breaker.permit(5)
    assert old is not None
    breaker.value(1, 6)
    for _ in range(ROUTING.probes):
        assert breaker.permit(11) is not None
    breaker.done(old)
    assert breaker.permit(11) is None


def test_neutral_results_change_nothing() -> None:
    breaker = Breaker(ROUTING)
    breaker.value(1, 0)
    for _ in range(500):
        permit = breaker.permit(5)
        assert permit is not None
        breaker.done(permit)
    assert breaker.state is HALF_OPEN


def test_reset_during_half_open() -> None:
    breaker = Breaker(ROUTING)
    breaker.value(1, 0)
    permit = breaker.permit(5)
    breaker.reset()
    assert breaker.state is CLOSED
    assert breaker.permit(5) == Permit()
    assert permit is not None
    breaker.done(permit)
    breaker.reset()
    assert breaker.transitions[CLOSED] == 1


def test_a_clock_that_goes_backwards_stands_still() -> None:
    breaker = Breaker(SWITCHES)
    breaker.value(5, 100)
    breaker.value(1, 101)
    assert breaker.value(1, 20) is HALF_OPEN
    assert breaker.value(1, 130.9) is HALF_OPEN
    assert breaker.value(1, 131) is CLOSED


@given(
    st.lists(st.tuples(st.floats(0, 8), st.floats(-5, 40)), max_size=80),
    st.sampled_from([SWITCHES, LOADS]),
)
def test_whatever_comes(steps: list[tuple[float, float]], rule: Rule) -> None:
    breaker, now_s, newest_s = Breaker(rule), 0.0, 0.0
    below_since: float | None = None
    row = 0
    for value, passed in steps:
        now_s += passed
        newest_s = max(newest_s, now_s)
        before = breaker.state
        after = breaker.value(value, now_s)
        if value < rule.close:
            below_since = newest_s if below_since is None else below_since
            row += 1
        else:
            below_since, row = None, 0
        if value >= rule.open:
            assert after is OPEN
        if before is not CLOSED and after is CLOSED:
            held = below_since is not None and newest_s - below_since >= rule.hold_s
            assert held if rule.hold_s else row >= rule.in_a_row
        if before is not OPEN and after is OPEN:
            assert value >= rule.open
        if after is WARNING:
            assert before in (CLOSED, WARNING)


@pytest.mark.parametrize(
    "wrong",
    [
        {"switch_rate": {"warning": 6}},
        {"fragmentation": {"close": -1}},
        {"load_latency": {"in_a_row": 0}},
        {"routing": {"open": float("nan")}},
        {"switches": {}},
        {"switch_rate": {"of": "time_share"}},
        {"load_latency": {"of": "minutes"}},
    ],
)
def test_numbers_that_contradict_each_other_stop_the_start(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BreakerSettings.model_validate(wrong)
