"""Adapters come, change and go while the others are asked: no answer may be another one's.

An operator adds an adapter, gives its name other weights, and removes it, over and over, with the
commands of ``tools admin``. It is asked for in between, and must say what it was last given.
"""

from __future__ import annotations

from typing import Literal

from loadtests.cast import Cast, Member
from loadtests.plan import Act, Call, Load
from loadtests.scenario import Scenario, Size
from loadtests.traces import DOORS, by_time, call, gamma, prompts

_PROMPT = 8
#: What a change may take until it is acknowledged, and what is asked for in between, seconds.
_SETTLE_S, _ASKED_S = 6.0, 6.0
_LIFE_S = 3 * _SETTLE_S + 2 * _ASKED_S


def changes(seconds: float) -> int:
    """Adapters that come, change and go one after the other."""
    return int(seconds // _LIFE_S)


def lives(
    seconds: float, spares: tuple[Member, ...], department: str
) -> tuple[list[Act], list[tuple[float, float, Member]]]:
    """What the operator does, and from when to when which adapter says what."""
    acts: list[Act] = []
    spans: list[tuple[float, float, Member]] = []
    for number in range(changes(seconds)):
        start = number * _LIFE_S
        # Every other life has the name of the one before: what is left of that must not answer.
        name = f"{department}_new{number // 2}_v1"
        for step in (0, 1):
            spare = spares[2 * number + step]
            at = start + step * (_SETTLE_S + _ASKED_S)
            what: Literal["add", "update"] = "update" if step else "add"
            acts.append(Act(at=at, what=what, lora_id=name, marker=spare.lora_id))
            begun = at + _SETTLE_S
            spans.append((begun, begun + _ASKED_S, Member(department, name, spare.word)))
        acts.append(Act(at=start + 2 * (_SETTLE_S + _ASKED_S), what="remove", lora_id=name))
    return acts, spans


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    prompt, residents = prompts(size.seed), cast.everyone(size.adapters)
    acts, spans = lives(size.seconds, cast.spares, "svc")
    calls: list[Call] = []
    for number, at in enumerate(gamma(size.rate, size.seconds, seed=size.seed)):
        new = [member for start, end, member in spans if start <= at < end]
        member = new[0] if new and number % 2 else residents[number % len(residents)]
        user = DOORS[number // 2 % len(DOORS)]
        calls.append(call(member, prompt(_PROMPT), size.tokens, at=at, user=user))
    return Load(seconds=size.seconds, arrivals=by_time(calls), acts=tuple(acts))


SCENARIO = Scenario(
    summary="Adapters are added, replaced and removed while all are asked.",
    size=Size(seconds=90, rate=3.0, adapters=4, tokens=8),
    markers=lambda size: {"fin": -(-size.adapters // 2), "svc": size.adapters // 2},
    spares=lambda size: 2 * changes(size.seconds),
    build=build,
)
