"""Many adapters of three departments, asked for by Zipf(1.0): few of them most of the time."""

from __future__ import annotations

from loadtests.cast import Cast
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.traces import from_jobs
from tools.simulate.workloads import Workload, zipf

_SHORTEST = 4


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    members = cast.everyone(size.adapters)
    jobs, _ = zipf(
        Workload(
            requests=int(size.rate * size.seconds * 2) + 10,
            adapters=len(members),
            rate=size.rate,
            shortest=min(_SHORTEST, size.tokens),
            longest=2 * size.tokens - min(_SHORTEST, size.tokens),
            seed=size.seed,
        )
    )
    return Load(
        seconds=size.seconds, arrivals=from_jobs(jobs, members, size.seconds, seed=size.seed)
    )


def markers(size: Size) -> dict[str, int]:
    """A third each."""
    names = ("fin", "qa", "svc")
    return {name: len(range(place, size.adapters, 3)) for place, name in enumerate(names)}


SCENARIO = Scenario(
    summary="Many adapters under Zipf(1.0), open arrivals, all doors.",
    size=Size(seconds=60, rate=3.0, adapters=30, tokens=12),
    markers=markers,
    build=build,
)
