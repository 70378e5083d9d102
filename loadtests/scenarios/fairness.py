"""Two departments as in the fairness paper (VTC): one is on and off, the other asks four times as
much all the time, together more than there is. The one that asks for less is not to wait for it.
"""

from __future__ import annotations

from loadtests.cast import Cast
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.traces import from_jobs
from tools.simulate.workloads import Workload, vtc


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    jobs, _ = vtc(
        Workload(
            requests=int(size.rate * size.seconds) + 10,
            rate=size.rate,
            shortest=size.tokens,
            longest=size.tokens,
            seed=size.seed,
        )
    )
    members = [*cast.of("fin", 1), *cast.of("svc", 1)]
    arrivals = from_jobs(jobs, members, size.seconds, seed=size.seed)
    return Load(seconds=size.seconds, arrivals=arrivals)


SCENARIO = Scenario(
    summary="Two departments, one on and off, the other beyond its share (VTC's workload).",
    size=Size(seconds=150, rate=10.0, tokens=24),
    markers=lambda size: {"fin": 1, "svc": 1},
    build=build,
)
