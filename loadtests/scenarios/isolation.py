"""Finance asks now and then; a third of the way in, service keeps as many streams open as it can.

Compared are finance's waits before and after. Finance arrives openly, with Poisson gaps; service is
closed loops over a few adapters of its own.
"""

from __future__ import annotations

from loadtests.cast import Cast
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.shapes import Step
from loadtests.traces import DOORS, call, gamma, loop, prompts

_ANSWER, _PROMPT = 4, 16


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    (victim,), prompt = cast.of("fin", 1), prompts(size.seed)
    streams = cast.of("svc", size.adapters)
    calm_s = size.seconds / 3
    return Load(
        seconds=size.seconds,
        arrivals=tuple(
            call(victim, prompt(_PROMPT), _ANSWER, at=at)
            for at in gamma(size.rate, size.seconds, seed=size.seed)
        ),
        loops=tuple(
            loop(
                streams[n % len(streams) :] + streams[: n % len(streams)],
                size.tokens,
                user=DOORS[n % 2],
                seed=size.seed + 1 + n,
                words=_PROMPT,
            )
            for n in range(size.users)
        ),
        shape=Step(users=size.users, after_s=calm_s),
        calm_s=calm_s,
    )


SCENARIO = Scenario(
    summary="One department's waits while another keeps many streams busy.",
    size=Size(seconds=90, rate=1.5, users=32, adapters=4, tokens=32),
    markers=lambda size: {"fin": 1, "svc": size.adapters},
    build=build,
)
