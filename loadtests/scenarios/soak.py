"""A day in small, for as long as one likes: every door, every kind of call, on and off.

Finance is on and off as in the fairness paper, service writes to many adapters, some callers
leave, some are not allowed, some make no sense, and adapters come and go.
"""

from __future__ import annotations

import random

from loadtests.cast import Cast, base
from loadtests.plan import Call, Load
from loadtests.scenario import Scenario, Size
from loadtests.scenarios.attack import forbidden, malformed
from loadtests.scenarios.churn import changes, lives
from loadtests.shapes import OnOff
from loadtests.traces import DOORS, call, gamma, loop, prompts

_PROMPT = 8
#: Share of each kind of arrival; the rest is good and for adapters.
_BASE, _LEAVES, _FORBIDDEN, _MALFORMED, _NEW = 0.1, 0.05, 0.03, 0.02, 0.1
_ON_S = _OFF_S = 60.0
#: So many different adapters come and go; then they come again.
_MOST_SPARES = 64


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    prompt, dice = prompts(size.seed), random.Random(size.seed)  # noqa: S311 - no secrets
    good, (other,), fin = cast.of("svc"), cast.of("qa", 1), cast.of("fin")
    spares = cast.spares * (1 + 2 * changes(size.seconds) // max(1, len(cast.spares)))
    acts, spans = lives(size.seconds, spares, "svc")

    def one(number: int, at: float) -> Call:
        draw, text = dice.random(), prompt(_PROMPT)
        usual = call(dice.choice(good), text, size.tokens, at=at, user=dice.choice(DOORS))
        if (draw := draw - _BASE) < 0:
            return call(base("fin"), text, size.tokens, at=at, user=dice.choice(DOORS))
        if (draw := draw - _LEAVES) < 0:
            door = dice.choice(DOORS[:2])
            return usual.model_copy(update={"kind": "cancel", "user": door, "tokens": 64})
        if (draw := draw - _FORBIDDEN) < 0:
            return forbidden("qa", dice.choice(good), text, at, number)
        if (draw := draw - _MALFORMED) < 0:
            return malformed(other, text, at, number)
        new = [member for start, end, member in spans if start <= at < end]
        if draw - _NEW < 0 and new:
            return call(new[0], text, size.tokens, at=at, user=usual.user)
        return usual

    times = gamma(size.rate, size.seconds, seed=size.seed)
    return Load(
        seconds=size.seconds,
        arrivals=tuple(one(number, at) for number, at in enumerate(times)),
        loops=tuple(
            loop(fin, size.tokens, user=DOORS[n % 3], seed=size.seed + 1 + n, words=_PROMPT)
            for n in range(size.users)
        ),
        shape=OnOff(users=size.users, on_s=_ON_S, off_s=_OFF_S),
        acts=tuple(acts),
    )


SCENARIO = Scenario(
    summary="Everything at once, on and off, for as long as one likes: does anything grow?",
    size=Size(seconds=150, rate=3.0, users=4, adapters=8, tokens=8),
    markers=lambda size: {"fin": 2, "qa": 1, "svc": size.adapters},
    spares=lambda size: min(_MOST_SPARES, 2 * changes(size.seconds)),
    build=build,
)
