"""Many adapters of three departments, asked for by Zipf(1.0): few of them most of the time."""

from __future__ import annotations

from collections.abc import Callable

from loadtests.cast import Cast
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.traces import from_jobs
from tools.simulate.workloads import Traffic, Workload, zipf

_SHORTEST = 4


def of_workload(draw: Callable[[Workload], Traffic], cast: Cast, size: Size) -> Load:
    """The open arrivals of a workload of ``tools simulate``, ``size.tokens`` on average."""
    members, shortest = cast.everyone(size.adapters), min(_SHORTEST, size.tokens)
    jobs, _ = draw(
        Workload(
            requests=int(size.rate * size.seconds * 2) + 10,
            adapters=len(members),
            rate=size.rate,
            shortest=shortest,
            longest=2 * size.tokens - shortest,
            seed=size.seed,
        )
    )
    arrivals = from_jobs(jobs, members, size.seconds, seed=size.seed)
    return Load(seconds=size.seconds, arrivals=arrivals)


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    return of_workload(zipf, cast, size)


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
