"""Short answers of many adapters for some seconds: slots change hands until a breaker opens.

Finance asks the base model meanwhile, and is to be answered as before.
"""

from __future__ import annotations

from loadtests.cast import Cast, base
from loadtests.plan import Load
from loadtests.scenario import Scenario, Size
from loadtests.shapes import Burst
from loadtests.traces import call, gamma, loop, prompts

_ANSWER, _PROMPT = 4, 8


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    members, prompt = cast.of("svc", size.adapters), prompts(size.seed)
    calm_s, burst_s = size.seconds / 6, size.seconds / 3
    return Load(
        seconds=size.seconds,
        arrivals=tuple(
            call(base("fin"), prompt(_PROMPT), _ANSWER, at=at)
            for at in gamma(size.rate, size.seconds, seed=size.seed)
        ),
        loops=tuple(
            # Each begins one adapter further on, so that hardly two want the same at once.
            loop(
                members[n % len(members) :] + members[: n % len(members)],
                size.tokens,
                user="grpc_stream",
                seed=size.seed + 1 + n,
                length=len(members),
                words=_PROMPT,
            )
            for n in range(size.users)
        ),
        shape=Burst(users=size.users, from_s=calm_s, for_s=burst_s),
        calm_s=calm_s,
    )


SCENARIO = Scenario(
    summary="Slots change hands until the breaker of the switch rate opens, and closes again.",
    size=Size(seconds=120, rate=1.0, users=8, adapters=16, tokens=1),
    markers=lambda size: {"fin": 1, "svc": size.adapters},
    build=build,
)
