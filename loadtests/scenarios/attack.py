"""One department tries to get at another's adapters, and sends what cannot be read.

The other one's calls go on and are answered as before; nothing that is forbidden is.
"""

from __future__ import annotations

import json
import random

from loadtests.cast import Cast, Member
from loadtests.plan import Call, Load
from loadtests.scenario import Scenario, Size
from loadtests.traces import DOORS, by_time, call, gamma, prompts

_ANSWER, _PROMPT = 4, 8
#: Spellings that a sloppy comparison would take for the target.
_SPELLINGS = ("{0}", "{0}@000000000000", "{0}\u200b", " {0}", "./{0}", "{0}\n", "fin_w0001_v1|{0}")
#: Inputs and parameters that no model takes.
_MALFORMED: tuple[tuple[dict[str, str], dict[str, int | bool | str]], ...] = (
    ({}, {"max_tokens": -1}),
    ({}, {"n": 1000}),
    ({}, {"temperatur": 1}),
    ({"messages": "[{"}, {}),
    ({"messages": json.dumps([{"role": "user", "content": "both"}])}, {}),
    ({"sampling_parameters": "{]"}, {}),
    ({"fusion": '{"mode": "sideways"}'}, {}),
)


def forbidden(attacker: str, target: Member, prompt: str, at: float, number: int) -> Call:
    """A call of ``attacker`` for ``target``, by turns in every spelling and through every door."""
    name = _SPELLINGS[number % len(_SPELLINGS)].format(target.lora_id)
    user = DOORS[number % len(DOORS)]
    asked = call(target, prompt, _ANSWER, at=at, user=user)
    # A name that is none is refused for its form, which is as good.
    kind = "forbidden" if name == target.lora_id else "malformed"
    return asked.model_copy(update={"department": attacker, "lora_id": name, "kind": kind})


def malformed(member: Member, prompt: str, at: float, number: int) -> Call:
    """A call that cannot be right, each kind in turn."""
    inputs, parameters = _MALFORMED[number % len(_MALFORMED)]
    asked = call(member, prompt, _ANSWER, at=at, user=DOORS[number % len(DOORS)])
    return asked.model_copy(
        update={"kind": "malformed", "inputs": inputs, "parameters": parameters}
    )


def build(cast: Cast, size: Size) -> Load:
    """See ``Scenario``."""
    (own,), targets, prompt = cast.of("qa", 1), cast.of("fin"), prompts(size.seed)
    dice = random.Random(size.seed)  # noqa: S311 - a load, no secrets
    bad = [
        forbidden("qa", dice.choice(targets), prompt(_PROMPT), at, number // 2)
        if number % 2
        else malformed(own, prompt(_PROMPT), at, number // 2)
        for number, at in enumerate(gamma(size.rate, size.seconds, cv=2.0, seed=size.seed))
    ]
    good = [
        call(dice.choice(targets), prompt(_PROMPT), size.tokens, at=at, user=dice.choice(DOORS))
        for at in gamma(size.rate / 4, size.seconds, seed=size.seed + 1)
    ]
    return Load(seconds=size.seconds, arrivals=by_time(bad, good))


SCENARIO = Scenario(
    summary="Forbidden and malformed calls of one department beside another's good ones.",
    size=Size(seconds=45, rate=8.0, adapters=3, tokens=8),
    markers=lambda size: {"fin": size.adapters, "qa": 1},
    build=build,
)
