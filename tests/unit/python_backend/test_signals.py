"""The windows that the breakers watch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend import signals
from python_backend.breaker import Breaker, State
from python_backend.breaker_settings import BreakerSettings

SETTINGS = BreakerSettings()


def test_switch_rate_over_ten_seconds() -> None:
    rate = signals.SwitchRate()
    assert rate.read(0, 0) == 0
    assert rate.read(50, 5) == 5
    assert rate.read(50, 10) == 5
    assert rate.read(50, 14.9) == 5
    assert rate.read(50, 15) == 0


def test_switch_rate_of_a_counter_or_clock_that_goes_back() -> None:
    rate = signals.SwitchRate()
    rate.read(100, 0)
    assert rate.read(7, 1) == 0
    assert rate.read(17, 0.5) == 1
    assert rate.read(17, 10.9) == 1
    assert rate.read(17, 11) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 30)), min_size=1, max_size=50))
def test_switch_rate_never_counts_what_is_older(steps: list[tuple[int, float]]) -> None:
    rate, count, now_s = signals.SwitchRate(), 0, 0.0
    rate.read(0, 0)
    events: list[tuple[float, int]] = []
    for more, passed in steps:
        count, now_s = count + more, now_s + passed
        events.append((now_s, more))
        found = rate.read(count, now_s)
        young = sum(n for at, n in events if at > now_s - signals.SWITCH_WINDOW_S)
        assert found == pytest.approx(young / signals.SWITCH_WINDOW_S)


def test_load_latency_opens_by_the_median_of_ten() -> None:
    breaker = Breaker(SETTINGS.load_latency.rule())
    loads = signals.LoadLatency(breaker)
    assert loads.median_s == 0
    for _ in range(9):
        loads.loaded(1.0, 0)
    assert (loads.median_s, breaker.state) == (1.0, State.CLOSED)
    loads.loaded(1.0, 0)
    assert breaker.state is State.OPEN
    for count in range(10):
        assert breaker.state is State.OPEN, count
        loads.loaded(0.029, 1)
    assert breaker.state is State.CLOSED


def test_one_slow_adapter_is_told_from_a_slow_tier() -> None:
    loads = signals.LoadLatency(Breaker(SETTINGS.load_latency.rule()))
    assert loads.culprit is None
    for int_id in (1, 2, 3, 9, 9, 9, 9, 9):
        loads.loaded(1.0 if int_id == 9 else 0.01, 0, int_id=int_id)
    assert loads.culprit == 9
    loads.loaded(0.03, 0, int_id=4)
    assert loads.culprit is None
    loads.clear()
    assert loads.culprit is None


def test_time_over_size_may_govern() -> None:
    breaker = Breaker(SETTINGS.load_latency.rule())
    loads = signals.LoadLatency(breaker, per_mib=True)
    for _ in range(10):
        loads.loaded(1.0, 0, size=100 << 20)
        loads.loaded(9.0, 0)
    assert (loads.median_s, loads.median_s_per_mib, breaker.state) == (5.0, 0.01, State.CLOSED)
    for _ in range(10):
        loads.loaded(0.01, 0, size=1 << 16, int_id=4)
    assert (loads.culprit, breaker.state) == (4, State.OPEN)


def test_a_few_slow_loads_do_not_open() -> None:
    breaker = Breaker(SETTINGS.load_latency.rule())
    loads = signals.LoadLatency(breaker)
    for seconds in (0.02,) * 6 + (5.0,) * 4 + (math.nan, -1.0):
        loads.loaded(seconds, 0)
    assert (loads.median_s, breaker.state) == (0.02, State.CLOSED)


def test_routing_errors_from_a_hundred_answers_on() -> None:
    breaker = Breaker(SETTINGS.routing.rule())
    routes = signals.RouteErrors(breaker)
    for _ in range(99):
        routes.answered(wrong=True, now_s=0)
    assert (routes.ratio, breaker.state) == (1.0, State.CLOSED)
    routes.answered(wrong=True, now_s=0)
    assert breaker.state is State.OPEN


@pytest.mark.parametrize(
    ("wrong", "state"), [(0, State.CLOSED), (1, State.WARNING), (2, State.WARNING), (3, State.OPEN)]
)
def test_routing_borders(wrong: int, state: State) -> None:
    breaker = Breaker(SETTINGS.routing.rule())
    routes = signals.RouteErrors(breaker)
    for answer in range(100):
        routes.answered(wrong=answer >= 100 - wrong, now_s=0)
    assert (routes.ratio, breaker.state) == (wrong / 100, state)


def test_a_hundred_right_ones_close_it_and_the_past_is_forgotten() -> None:
    breaker = Breaker(SETTINGS.routing.rule())
    routes = signals.RouteErrors(breaker)
    for _ in range(100):
        routes.answered(wrong=True, now_s=0)
    assert breaker.permit(5) is not None
    routes.answered(wrong=True, now_s=5)
    assert breaker.state is State.OPEN, "a probe that fails opens it again"
    assert breaker.permit(10) is not None
    for _ in range(99):
        routes.answered(wrong=False, now_s=11)
    assert breaker.state is State.HALF_OPEN
    routes.answered(wrong=False, now_s=11)
    assert (breaker.state, routes.ratio) == (State.CLOSED, 0)
    routes.answered(wrong=True, now_s=12)
    assert breaker.state is State.CLOSED


def test_the_window_is_a_thousand() -> None:
    routes = signals.RouteErrors()
    for answer in range(1500):
        routes.answered(wrong=answer < 600, now_s=0)
    assert routes.ratio == 0.1


def test_fragmentation() -> None:
    assert signals.fragmentation(70, 100) == pytest.approx(0.3)
    assert signals.fragmentation(110, 100) == 0
    for allocated, reserved in ((1, 0), (math.nan, 1), (1, math.inf)):
        assert math.isnan(signals.fragmentation(allocated, reserved))
