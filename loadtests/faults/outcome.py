"""What faults did, told by the requests alone. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from loadtests.faults.injector import Injected
from loadtests.results import Fault, Request


def outcomes(
    injected: Sequence[Injected], requests: Sequence[Request], seconds: float
) -> list[Fault]:
    """A line for ``faults.jsonl`` for each injected fault.

    Where good requests failed between a fault and the next one, what counts is the longest time
    there without a good answer: ``down`` is its length, and its end is when the server was back.
    Where none failed, nobody was hurt, and it was back with the first answer to a request that was
    sent after the fault.

    Args:
        injected: by time.
        seconds: how long the load lasted.
    """
    good = [request for request in requests if request.kind == "good"]
    until = [fault.at_s for fault in injected[1:]]
    last = max([seconds, *map(_end, good)])
    return [_outcome(fault, good, end) for fault, end in zip(injected, [*until, last], strict=True)]


def _outcome(fault: Injected, good: Sequence[Request], until: float) -> Fault:
    inside = [r for r in good if fault.at_s <= _end(r) <= until]
    answers = sorted(_end(r) for r in inside if r.outcome == "ok")
    down = healed = None
    if len(answers) == len(inside):
        after = [_end(r) for r in inside if r.sent >= fault.at_s]
        healed = min(after) - fault.at_s if after else None
    else:
        begin, end = max(_gaps(fault.at_s, answers, until), key=lambda gap: gap[1] - gap[0])
        down = end - begin
        # A gap that lasts until the next fault has not ended.
        healed = end - fault.at_s if answers and end <= answers[-1] else None
    return Fault(t=fault.at_s, fault=fault.kind, target=fault.target, healed=healed, down=down)


def _gaps(begin: float, answers: Sequence[float], end: float) -> Iterator[tuple[float, float]]:
    yield from itertools.pairwise([begin, *answers, end])


def _end(request: Request) -> float:
    return request.sent + request.total
