"""Many adapters as in S-LoRA: number ``int(power(a)·n)``, Gamma gaps, uniform lengths."""

from __future__ import annotations

from loadtests.cast import Cast
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.scenarios.zipf import markers, of_workload
from tools.simulate.workloads import slora


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    return of_workload(slora, cast, size)


SCENARIO = Scenario(
    summary="Many adapters as in the S-LoRA paper, open arrivals, all doors.",
    size=Size(seconds=60, rate=3.0, adapters=30, tokens=12),
    markers=markers,
    build=build,
)
