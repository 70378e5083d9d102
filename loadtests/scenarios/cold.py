"""One stream goes on while each arrival wants an adapter that nobody has used yet.

In the first half the same arrivals want one adapter that is warm. Compared are the times between
the stream's tokens.
"""

from __future__ import annotations

from loadtests.cast import Cast
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.shapes import Soak
from loadtests.traces import call, gamma, loop, prompts

_ANSWER, _PROMPT, _WARM = 4, 16, 48


def count(size: Size) -> int:
    """Arrivals of one half, as on average; with one adapter each."""
    return max(1, int(size.rate * size.seconds / 2))


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    (stream,), prompt = cast.of("fin", 1), prompts(size.seed)
    warm, *cold = cast.of("svc", count(size) + 1)
    half_s = size.seconds / 2
    times = gamma(size.rate, half_s, seed=size.seed)[: len(cold)]
    first = [call(warm, prompt(_PROMPT), _ANSWER, at=at) for at in times]
    second = [
        call(member, prompt(_PROMPT), _ANSWER, at=half_s + at)
        for at, member in zip(times, cold, strict=False)
    ]
    return Load(
        seconds=size.seconds,
        arrivals=(*first, *second),
        loops=(loop((stream,), _WARM, user="grpc_stream", seed=size.seed + 1, words=_PROMPT),),
        shape=Soak(users=1),
        calm_s=half_s,
    )


SCENARIO = Scenario(
    summary="A warm stream's tokens while every arrival brings a cold adapter.",
    size=Size(seconds=80, rate=0.75),
    markers=lambda size: {"fin": 1, "svc": count(size) + 1},
    build=build,
)
