"""How many servers hold a goal, in cases that can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tools.report import folders
from tests.unit.tools.report.folders import UNPROTECTED, refused, request
from tools.report import fitting, sizing
from tools.report.order import Order, Room
from tools.report.reading import ReportProblem, load
from tools.report.side import side
from tools.report.sizing import Wish, fewest, jobs_of, rate_of, scaled
from tools.simulate.engine import StepCost

#: A step takes a second, whatever is in it.
SECOND = StepCost(fixed_s=1.0, per_sequence_s=0.0, per_prompt_token_s=0.0, per_switch_s=0.0)


@pytest.mark.parametrize("least", [1, 2, 3, 7, 32, 63, 64])
def test_the_fewest_that_hold(least: int) -> None:
    tried: list[int] = []

    def holds(servers: int) -> bool:
        tried.append(servers)
        return servers >= least

    assert fewest(holds) == least
    assert len(tried) == len(set(tried)) <= 12


def test_none_holds() -> None:
    assert fewest(lambda servers: False) is None


def test_jobs_are_the_good_requests() -> None:
    jobs = jobs_of(
        [
            request(2.0, tokens=8),
            request(3.0, tokens=4, lora_id=None),
            refused(4.0, "overloaded", lora_id="fin_other_v1"),
            refused(4.5, "not_found", kind="forbidden"),
            refused(5.0, "transport"),
            refused(5.5, "unavailable"),
            request(6.0, department="svc", tokens=0, lora_id="fin_risk_v1"),
        ],
        prompt_tokens=20,
    )
    assert [(j.at_s, j.department, j.adapter, j.tokens, j.output) for j in jobs] == [
        (0.0, "fin", 0, 20, 8),
        (1.0, "fin", None, 20, 4),
        (2.0, "fin", 1, 20, 6),  # never answered: as many tokens as the median of 8 and 4
        (4.0, "svc", 0, 20, 1),
    ]
    assert rate_of(jobs) == 0.75


def test_a_trace_at_another_rate_goes_on_evenly() -> None:
    jobs = jobs_of([request(t) for t in range(5)], 1)
    # One a second; at two a second five take 2.5 s, then they come again.
    assert [j.at_s for j in scaled(jobs, 2.0, requests=6)] == [
        *(0.0, 0.5, 1.0, 1.5, 2.0),
        *(2.5, 3.0, 3.5, 4.0, 4.5),
    ]


def test_what_the_engine_has_room_for() -> None:
    had = folders.run(settings={"engine": {"max_num_seqs": 32}})
    assert sizing.room_of(had, Wish()) == Room(32, 4)
    assert sizing.room_of(had, Wish(seats=8, slots=2)) == Room(8, 2)


def test_the_plan_buys_what_holds_the_goal(tmp_path: Path) -> None:
    # Answers of 4 tokens in steps of a second, one seat: a server ends one each 4 s. One request
    # a second needs at least four of them, and chance needs more.
    trace = [request(t, tokens=4) for t in range(40)]
    before = load(folders.write(tmp_path / "a", trace, **UNPROTECTED))
    after = load(folders.write(tmp_path / "b", trace))
    wish = Wish(goal_s=60.0, price_per_hour=2.0, seats=1, slots=1, cost=SECOND, fit=False)
    plan = sizing.plan(after, (side(before, "off"), side(after, "on")), wish)
    assert (plan.rate, plan.goal_s) == (1.0, 60.0)
    off, on = plan.sides
    assert (off.order, on.order) == ("one queue for all", "in turn")
    for one in plan.sides:
        assert one.instances is not None and 5 <= one.instances <= 8
        assert one.p99 is not None and one.p99 <= 60.0
        assert one.n == 4000
        assert one.cost_per_month == one.instances * 2.0 * 730
        # The trace alone on one server: 40 callers, served one after the other in 4 s each, who
        # come a second apart. The one in the middle has 20·4 + 1 - 20 s to wait.
        assert (one.simulated_p50.value, one.simulated_p50.n) == (61.0, 40)
        assert (one.measured_p50.value, one.measured_p50.n) == (0.25, 40)


def test_a_goal_below_one_step_cannot_be_bought(tmp_path: Path) -> None:
    after = load(folders.write(tmp_path / "b", [request(t) for t in range(40)]))
    wish = Wish(goal_s=0.5, price_per_hour=2.0, cost=SECOND, fit=False)
    (one,) = sizing.plan(after, [side(after, "on")], wish).sides
    assert (one.instances, one.cost_per_month, one.worst_department) == (None, None, "fin")
    assert one.p99 is not None and one.p99 > 0.5


def test_without_a_good_request_there_is_nothing_to_size(tmp_path: Path) -> None:
    bad = [refused(0.0, "not_found", kind="forbidden")]
    after = load(folders.write(tmp_path / "b", bad))
    with pytest.raises(ReportProblem, match="no good request"):
        sizing.plan(after, [side(after, "on")], Wish())


def test_costs_are_stretched_to_the_runs() -> None:
    jobs = jobs_of([request(10 * t, tokens=5) for t in range(8)], 1)
    # Alone in the engine, a token comes each step of a second; half a second was measured.
    got = fitting.factor_of(jobs, [0.5, 0.5, 0.9], Order(), Room(), SECOND)
    assert got == pytest.approx(0.5)
    assert fitting.stretched(StepCost(1, 2, 3, 4), 0.5) == StepCost(0.5, 1, 1.5, 2)
    assert fitting.factor_of(jobs, [], Order(), Room(), SECOND) == 1.0
    short = jobs_of([request(0, tokens=1)], 1)
    assert fitting.factor_of(short, [0.5], Order(), Room(), SECOND) == 1.0


def test_what_was_measured_between_tokens() -> None:
    asked = [request(0, gaps=(0.02, 0.5)), request(1, gaps=()), refused(2, "overloaded")]
    assert fitting.gaps_of([*asked, request(3, kind="cancel")]) == [0.02]
