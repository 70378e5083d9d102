"""When which fault is injected, and when it is undone. Pure: times go in."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

#: Seconds that what undoes itself stays, if nothing else is said.
HOLD_S = 10.0
_ONE = re.compile(r"(?P<kind>[a-z_]+)(?:@(?P<at>\d+(?:\.\d+)?))?(?:\+(?P<hold>\d+(?:\.\d+)?))?")


class ScheduleError(ValueError):
    """The faults cannot be planned so; the text is one line with the cure."""


@dataclasses.dataclass(frozen=True)
class Planned:
    """A fault. ``at_s``: seconds since the start of the load, ``hold_s``: until it is undone."""

    kind: str
    at_s: float
    hold_s: float


def plan(text: str, seconds: float, known: Sequence[str]) -> tuple[Planned, ...]:
    """``kill_engine,disk_full@60+15``: a fault at 60 s for 15 s, the others spread evenly.

    Args:
        text: kinds with commas between; ``all`` for every one that is known.
        seconds: how long the load lasts.

    Raises:
        ScheduleError: a kind is not known, or a fault comes before the one before it has ended.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        words = list(known)
    found = [_one(word, known) for word in words]
    step = seconds / (len(found) + 1)
    faults = [
        Planned(kind, step * number if at is None else at, HOLD_S if hold is None else hold)
        for number, (kind, at, hold) in enumerate(found, start=1)
    ]
    ordered = tuple(sorted(faults, key=lambda fault: fault.at_s))
    for one, following in itertools.pairwise(ordered):
        if following.at_s < one.at_s + one.hold_s:
            raise ScheduleError(
                f"{following.kind} at {following.at_s:g} s comes while {one.kind} still lasts "
                f"(until {one.at_s + one.hold_s:g} s): a longer run, or fewer faults"
            )
    if ordered and ordered[-1].at_s + ordered[-1].hold_s >= seconds:
        raise ScheduleError(
            f"{ordered[-1].kind} would last beyond the {seconds:g} s of the run: a longer run"
        )
    return ordered


def _one(word: str, known: Sequence[str]) -> tuple[str, float | None, float | None]:
    found = _ONE.fullmatch(word)
    if found is None or found["kind"] not in known:
        raise ScheduleError(f"no fault {word!r}; NAME[@SECONDS][+SECONDS] of {', '.join(known)}")
    at, hold = (None if text is None else float(text) for text in (found["at"], found["hold"]))
    return found["kind"], at, hold
