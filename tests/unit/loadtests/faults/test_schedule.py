"""When which fault comes, and what the requests say it did; by hand."""

from __future__ import annotations

import pytest

from loadtests.faults.injector import Injected
from loadtests.faults.outcome import outcomes
from loadtests.faults.schedule import HOLD_S, Planned, ScheduleError, plan
from loadtests.results import Fault
from tests.unit.tools.report.folders import refused, request

KNOWN = ("kill_engine", "disk_full", "policy_broken")


def test_faults_are_spread_evenly() -> None:
    assert plan("kill_engine, disk_full", 90, KNOWN) == (
        Planned("kill_engine", 30, HOLD_S),
        Planned("disk_full", 60, HOLD_S),
    )
    assert [fault.at_s for fault in plan("all", 400, KNOWN)] == [100, 200, 300]
    assert plan("", 10, KNOWN) == ()


def test_times_can_be_given() -> None:
    assert plan("disk_full@50+5,kill_engine@12.5", 60, KNOWN) == (
        Planned("kill_engine", 12.5, HOLD_S),
        Planned("disk_full", 50, 5),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kill_engin", "no fault 'kill_engin'; .* of kill_engine, disk_full, policy_broken"),
        ("disk_full@soon", "no fault 'disk_full@soon'"),
        ("disk_full@10+20,kill_engine@29", "kill_engine at 29 s comes while disk_full still lasts"),
        ("disk_full@95", "disk_full would last beyond the 100 s of the run"),
    ],
)
def test_what_cannot_be_planned(text: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        plan(text, 100, KNOWN)


def injected(*at_s: float) -> list[Injected]:
    return [Injected("kill_engine", "EngineCore", at) for at in at_s]


def test_a_kill_in_which_nobody_is_answered_for_a_while() -> None:
    # Answers end at 1, 4.5 and 31; what was sent at 5 and at 12 failed.
    asked = [request(0), request(3.5), refused(5, "unavailable"), refused(12, "transport")]
    assert outcomes(injected(4), [*asked, request(30)], 40) == [
        Fault(t=4, fault="kill_engine", target="EngineCore", healed=27.0, down=26.5)
    ]


def test_a_fault_that_hurts_nobody() -> None:
    asked = [request(t) for t in (0, 3.5, 4.5, 9)]
    (fault,) = outcomes(injected(4), asked, 40)
    # Sent before it, the answer at 4.5 says nothing; that of 4.5 comes at 5.5.
    assert (fault.healed, fault.down) == (1.5, None)


def test_refused_calls_that_should_be_are_no_harm() -> None:
    asked = [request(5), refused(6, "not_found", kind="forbidden")]
    assert outcomes(injected(4), asked, 40)[0].down is None


def test_each_fault_has_the_time_until_the_next() -> None:
    asked = [refused(11, "unavailable"), request(19), refused(31, "unavailable"), request(34)]
    first, second = outcomes(injected(10, 30), asked, 40)
    assert (first.healed, first.down) == (10.0, 10.0)
    # Nobody was answered between 20 and 30 either, but nobody failed: the longest is 10 … 20.
    assert (second.healed, second.down) == (5.0, 5.0)


def test_it_never_came_back() -> None:
    (fault,) = outcomes(injected(10), [request(1), refused(20, "transport")], 40)
    assert (fault.healed, fault.down) == (None, 30.0)
    assert outcomes(injected(10), [request(1)], 40)[0].healed is None
