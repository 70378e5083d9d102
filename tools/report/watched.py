"""What a run's samples say: memory, slot switches, fragmentation, breakers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from loadtests.results import Request, Sample
from python_backend import lora_metrics
from tools.report.figures import Interval, Memory, MemoryAfter, Number, Series, State
from tools.report.reading import Loaded
from tools.report.statistics import gained, thinned
from tools.top.reading import Page

DOWN: State = "server down"
#: By the value of the gauge.
STATES: tuple[State, ...] = ("closed", "warning", "open", "half-open")
#: After the first answers of so many adapters the case looked at its memory.
ADAPTERS = (3, 10)


def pages(samples: Sequence[Sample]) -> list[Page | None]:
    """The metrics of each sample; None where the server did not answer."""
    return [
        None
        if sample.metrics is None
        else Page.parse("\n".join(f"{k} {v!r}" for k, v in sample.metrics.items()), sample.t)
        for sample in samples
    ]


def counted(looks: Sequence[Page | None], name: str) -> Number:
    """How much a counter grew over the run."""
    values = [value for page in looks if page and (value := page.one(name)) is not None]
    return Number(value=gained(values) if len(values) > 1 else None, n=len(values))


def counted_by(looks: Sequence[Page | None], name: str, label: str) -> dict[str, int]:
    """How much a counter grew, by one of its labels; what did not grow is left out.

    A series that a page lacks has not begun: it counts as 0 there.
    """
    seen = [page.by(name, label) for page in looks if page]
    keys = sorted({key for values in seen for key in values})
    grown = {key: gained([values.get(key, 0.0) for values in seen]) for key in keys}
    return {key: round(value) for key, value in grown.items() if value > 0}


def resident(sample: Sample) -> int:
    """Resident bytes of all processes of the server."""
    return sum(sample.rss.values())


def memory(loaded: Loaded) -> Memory:
    """The peak, and what the first adapters cost."""
    there = [sample for sample in loaded.samples if sample.rss]
    if not there:
        return Memory(peak=Number(value=None, n=0), peak_at=None, by_role={}, after=())
    top = max(there, key=resident)
    return Memory(
        peak=Number(value=resident(top), n=len(there)),
        peak_at=top.t,
        by_role=dict(sorted(top.rss.items(), key=lambda item: -item[1])),
        after=tuple(_after(loaded, there)),
    )


def _after(loaded: Loaded, there: Sequence[Sample]) -> Iterator[MemoryAfter]:
    before = resident(there[0])
    left = loaded.run.machine.memory_bytes - before
    reached = _adapters_answered(loaded.requests)
    for count in ADAPTERS:
        until = [s for s in there if count <= len(reached) and s.t >= reached[count - 1]]
        if until and left > 0:
            growth = resident(until[0]) - before
            yield MemoryAfter(
                adapters=count,
                growth=growth,
                of_resident=growth / before,
                of_available=growth / left,
                n=len([s for s in there if s.t <= until[0].t]),
            )


def _adapters_answered(requests: Sequence[Request]) -> list[float]:
    """When the first, second, … different adapter had given its first whole answer."""
    first: dict[str, float] = {}
    for request in requests:
        if request.lora_id is not None and request.outcome == "ok":
            end = request.sent + request.total
            first[request.lora_id] = min(end, first.get(request.lora_id, end))
    return sorted(first.values())


def memory_over_time(samples: Sequence[Sample]) -> Series:
    """Resident memory; nothing while there is no process."""
    return thinned("resident", [(s.t, resident(s) if s.rss else None) for s in samples])


def fragmentation(looks: Sequence[Page | None], times: Sequence[float]) -> tuple[Series, ...]:
    """The fragmentation of each pool over time."""
    by_pool = [page.by(lora_metrics.FRAGMENTATION, "pool") if page else {} for page in looks]
    return tuple(
        thinned(pool, [(t, values.get(pool)) for t, values in zip(times, by_pool, strict=True)])
        for pool in sorted({pool for values in by_pool for pool in values})
    )


def breakers(
    looks: Sequence[Page | None], times: Sequence[float], end_s: float
) -> tuple[Interval, ...]:
    """Each signal's states, one after the other."""
    states = [page.by(lora_metrics.BREAKER_STATE, "signal") if page else None for page in looks]
    ends = [*times[1:], max([end_s, *times[-1:]])][: len(times)]
    found = []
    for signal in sorted({signal for values in states if values for signal in values}):
        line: list[tuple[State, float, float]] = []
        for values, begin, end in zip(states, times, ends, strict=True):
            if values is None:
                line.append((DOWN, begin, end))
            elif signal in values:
                line.append((STATES[int(values[signal])], begin, end))
        for state, run in itertools.groupby(line, key=lambda part: part[0]):
            parts = list(run)
            found.append(Interval(signal=signal, state=state, begin=parts[0][1], end=parts[-1][2]))
    return tuple(found)
