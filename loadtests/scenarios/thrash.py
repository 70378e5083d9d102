"""Twice as many adapters as slots, round robin: each stream its own adapter, all the time."""

from __future__ import annotations

from loadtests.cast import Cast
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.scenarios.zipf import markers
from loadtests.shapes import Ramp
from loadtests.traces import DOORS, loop

_PROMPT = 12


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    members = cast.everyone(size.adapters)
    return Load(
        seconds=size.seconds,
        loops=tuple(
            loop(
                (members[n % len(members)],),
                size.tokens,
                user=DOORS[n % len(DOORS)],
                seed=size.seed + n,
                words=_PROMPT,
            )
            for n in range(size.users)
        ),
        shape=Ramp(users=size.users, over_s=size.seconds / 6),
    )


SCENARIO = Scenario(
    summary="Twice as many adapters as slots, round robin, closed loops.",
    size=Size(seconds=60, users=16, adapters=16, tokens=16),
    markers=markers,
    build=build,
    settings=lambda size: {"engine": {"max_loras": max(2, size.adapters // 2)}},
)
