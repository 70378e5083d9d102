"""The simulator's step costs, stretched until its answers are as slow as those of a run."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from loadtests.results import Request
from tools.report.order import Order, Room
from tools.simulate.engine import Job, StepCost, simulate

#: With other costs other requests share a step: the factor settles in a few rounds.
_ROUNDS = 6


def gaps_of(requests: Sequence[Request]) -> list[float]:
    """The median time between tokens of each good answer that has one, seconds."""
    return [r.gaps[0] for r in requests if r.kind == "good" and r.outcome == "ok" and r.gaps]


def stretched(cost: StepCost, factor: float) -> StepCost:
    """All costs, times ``factor``."""
    values = {name: value * factor for name, value in dataclasses.asdict(cost).items()}
    return StepCost(**values)


def factor_of(
    jobs: Sequence[Job], gaps: Sequence[float], order: Order, room: Room, cost: StepCost
) -> float:
    """By what all costs are multiplied so that one server's tokens come as they were measured.

    1 where nothing was measured or every answer has one token.
    """
    factor = 1.0
    if not gaps or all(job.output < 2 for job in jobs):
        return factor
    wanted = statistics.median(gaps)
    for _ in range(_ROUNDS):
        ended = simulate(iter(jobs), order.chooser(room), stretched(cost, factor))
        each = [(d.end_s - d.first_s) / (d.job.output - 1) for d in ended if d.job.output > 1]
        factor *= wanted / statistics.median(each)
    return factor
