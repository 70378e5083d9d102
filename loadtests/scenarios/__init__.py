"""The scenarios by name, each a small file."""

from __future__ import annotations

from loadtests.problem import LoadProblem
from loadtests.scenario import Scenario
from loadtests.scenarios import (
    attack,
    breaker,
    churn,
    cold,
    fairness,
    isolation,
    slora,
    soak,
    thrash,
    zipf,
)

SCENARIOS: dict[str, Scenario] = {
    "isolation": isolation.SCENARIO,
    "fairness": fairness.SCENARIO,
    "zipf": zipf.SCENARIO,
    "slora": slora.SCENARIO,
    "thrash": thrash.SCENARIO,
    "churn": churn.SCENARIO,
    "cold": cold.SCENARIO,
    "breaker": breaker.SCENARIO,
    "soak": soak.SCENARIO,
    "attack": attack.SCENARIO,
}


def named(name: str) -> Scenario:
    """The scenario of a name.

    Raises:
        LoadProblem: there is none.
    """
    if name not in SCENARIOS:
        raise LoadProblem(f"{name!r}: no such scenario; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
