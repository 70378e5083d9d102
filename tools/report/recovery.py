"""How available a run was, what its faults did, and how it came back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadtests.results import Fault, Request
from tools.report.figures import FaultSeen, Number, Recovery
from tools.report.reading import Loaded
from tools.report.statistics import share, union


def recovery(loaded: Loaded) -> Recovery:
    """Availability and recovery, from the faults and from the requests themselves."""
    good = [request for request in loaded.requests if request.kind == "good"]
    seconds = loaded.run.seconds
    faults = loaded.faults
    down = union((f.t, min(seconds, f.t + f.down)) for f in faults if f.down is not None)
    healed = [fault.healed for fault in faults if fault.healed is not None]
    ended, answered = (
        {int(_end(r)) for r in good},
        {int(_end(r)) for r in good if r.outcome == "ok"},
    )
    return Recovery(
        available=share(len(answered), len(ended)),
        up=Number(value=1 - down / seconds if faults else None, n=len(faults)),
        longest_gap=longest_gap(good),
        slowest=Number(value=max(healed, default=None), n=len(healed)),
        unhealed=len(faults) - len(healed),
        faults=tuple(_seen(fault, good, seconds) for fault in faults),
    )


def longest_gap(good: Sequence[Request]) -> Number:
    """The longest time in which somebody waited and nobody got a good answer."""
    if not good:
        return Number(value=None, n=0)
    by_end = sorted(good, key=_end)
    answers = [request for request in by_end if request.outcome == "ok"]
    # From each place on: when the first of those that end there or later was sent.
    asked = _end(by_end[-1])
    since = []
    for request in reversed(by_end):
        asked = min(asked, request.sent)
        since.append(asked)
    since.reverse()
    longest, last_end, begun = 0.0, by_end[0].sent, since[0]
    for number, request in enumerate(by_end):
        is_last = number == len(by_end) - 1
        if request.outcome == "ok" or is_last:
            longest = max(longest, _end(request) - max(last_end, begun))
        if request.outcome == "ok" and not is_last:
            last_end, begun = _end(request), since[number + 1]
    return Number(value=longest, n=len(answers))


def _end(request: Request) -> float:
    return request.sent + request.total


def _seen(fault: Fault, good: Sequence[Request], seconds: float) -> FaultSeen:
    until = seconds if fault.healed is None else fault.t + fault.healed
    inside = [r for r in good if r.sent <= until and _end(r) >= fault.t]
    failed = [r for r in inside if r.outcome != "ok"]
    return FaultSeen(
        t=fault.t,
        fault=fault.fault,
        target=fault.target,
        down=fault.down,
        healed=fault.healed,
        hurt=dict(sorted(Counter(r.department for r in failed).items())),
        broken_off=sum(r.ttft is not None for r in failed),
        n=len(inside),
    )
