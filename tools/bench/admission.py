"""What admission itself costs a request with 10,000 in the queue.

A request comes, another enters, one ends: the three calls together, over 8 departments and 1,000
adapters in 16 slots with 64 seats.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator

from python_backend.admission.department import Request
from python_backend.admission.limits import Limits
from python_backend.admission.scheduler import Scheduler
from tools.bench.scenario import Options, Result, measure

_QUEUED, _PROMISE_US = 10_000, 20.0


def _rounds(adapters: int) -> Iterator[Callable[[], object]]:
    dice = random.Random(1)  # noqa: S311 - no secret
    scheduler = Scheduler(Limits(64, 16, patience=64))
    running: deque[Request] = deque()

    def new() -> Request:
        adapter = dice.randrange(adapters)
        return Request(f"d{adapter % 8}", adapter, 1, 100, 100)

    for _ in range(_QUEUED):
        scheduler.enqueue(new(), 0.0)

    def step(request: Request, now_s: float) -> None:
        scheduler.enqueue(request, now_s)
        while (admitted := scheduler.admit(now_s)) is not None:
            running.append(admitted)
        ended = running.popleft()
        ended.produced = 100
        scheduler.leave(ended, now_s)

    for number in itertools.count():
        request = new()
        yield lambda request=request, now_s=number / 10: step(request, now_s)  # type: ignore[misc]


def run(options: Options) -> Result:
    """Measures with 16 adapters, all of which have a slot, and with 1,000."""
    cases = tuple(
        measure(f"{adapters} adapters, {_QUEUED} queued", _rounds(adapters), options)
        for adapters in (16, 1000)
    )
    return Result(
        "admission",
        cases,
        {
            f"{case.name}: mean at most {_PROMISE_US:g} µs": case.mean_us <= _PROMISE_US
            for case in cases
        },
    )
