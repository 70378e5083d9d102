"""What a budget may limit, each by name: a figure and over how many samples it was taken. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence

from loadtests.results import Change, Request, Sample
from tools.bench.figures import percentile

#: A value, None where there was nothing to measure, and its number of samples.
Figure = tuple[float | None, int]
_OPEN = 2.0


@dataclasses.dataclass(frozen=True)
class Seen:
    """A run's records. ``calm_s``: until then the load was light."""

    requests: Sequence[Request]
    samples: Sequence[Sample]
    seconds: float
    calm_s: float = 0.0
    changes: Sequence[Change] = ()

    def answered(self, department: str, *, calm: bool = False) -> list[Request]:
        """The good answers of a department (of all for ``""``) after the calm, or in it."""
        return [
            request
            for request in self.requests
            if request.kind == "good"
            and request.outcome == "ok"
            and department in ("", request.department)
            and (request.t < self.calm_s) is calm
        ]


Measure = Callable[[Seen, str], Figure]


def _count(of: Iterable[bool]) -> Figure:
    found = list(of)
    return float(sum(found)), len(found)


def wrong_routes(seen: Seen, department: str) -> Figure:
    """Answers of another adapter than was asked for, of those that could be checked."""
    return _count(
        request.route == "wrong"
        for request in seen.requests
        if request.route != "unchecked" and department in ("", request.department)
    )


def errors(seen: Seen, department: str) -> Figure:
    """Share of the good calls that were not answered."""
    failed, count = _count(
        request.outcome != "ok"
        for request in seen.requests
        if request.kind == "good" and department in ("", request.department)
    )
    return (failed or 0.0) / count if count else None, count


def let_in(seen: Seen, department: str) -> Figure:
    """Forbidden and malformed calls that were answered."""
    return _count(
        request.outcome == "ok"
        for request in seen.requests
        if request.kind in ("forbidden", "malformed") and department in ("", request.department)
    )


def transport(seen: Seen, department: str) -> Figure:
    """Calls without an answer of ours."""
    return _count(
        request.outcome == "transport"
        for request in seen.requests
        if department in ("", request.department)
    )


def changes_failed(seen: Seen, department: str) -> Figure:
    """Commands of the operator that the server did not carry out."""
    return _count(change.error is not None for change in seen.changes)


def requests(seen: Seen, department: str) -> Figure:
    """Calls."""
    count = sum(department in ("", request.department) for request in seen.requests)
    return float(count), count


def tokens_per_s(seen: Seen, department: str) -> Figure:
    """Tokens of good answers a second."""
    found = [*seen.answered(department), *seen.answered(department, calm=True)]
    return sum(request.tokens for request in found) / seen.seconds, len(found)


def late_p99(seen: Seen, department: str) -> Figure:
    """Seconds from when an open arrival was due until it was sent, P99: the load's own delay."""
    # A call of a closed loop is due when it is sent.
    found = [request.sent - request.t for request in seen.requests if request.sent > request.t]
    return (percentile(found, 99), len(found)) if found else (None, 0)


def _ttfts(found: Iterable[Request]) -> list[float]:
    return [request.ttft for request in found if request.ttft is not None]


def _totals(found: Iterable[Request]) -> list[float]:
    return [request.total for request in found]


def _longest_gaps(found: Iterable[Request]) -> list[float]:
    return [request.gaps[1] for request in found if len(request.gaps) == 2]


def _at(values: Callable[[Iterable[Request]], list[float]], percent: float) -> Measure:
    def measure(seen: Seen, department: str) -> Figure:
        found = values(seen.answered(department))
        return (percentile(found, percent), len(found)) if found else (None, 0)

    return measure


def _ratio(values: Callable[[Iterable[Request]], list[float]], percent: float) -> Measure:
    def measure(seen: Seen, department: str) -> Figure:
        after = values(seen.answered(department))
        before = values(seen.answered(department, calm=True))
        if not after or not before:
            return None, 0
        ratio = percentile(after, percent) / max(percentile(before, percent), 1e-9)
        return ratio, min(len(after), len(before))

    return measure


def _states(seen: Seen, signal: str) -> list[float]:
    start, wanted = "lora_breaker_state{", f'signal="{signal}"'
    return [
        value
        for sample in seen.samples
        for name, value in (sample.metrics or {}).items()
        if name.startswith(start) and wanted in name
    ]


def open_s(seen: Seen, signal: str) -> Figure:
    """Looks, one a second, that found the breaker of a signal open."""
    return _count(state >= _OPEN for state in _states(seen, signal))


def open_at_end(seen: Seen, signal: str) -> Figure:
    """1 where the breaker of a signal was open when the run ended."""
    return _count(state >= _OPEN for state in _states(seen, signal)[-1:])


def _growth(values: Callable[[Sample], float]) -> Measure:
    """The last fifth over the second one, medians, less 1: what starts is not what grows."""

    def measure(seen: Seen, department: str) -> Figure:
        found = [values(sample) for sample in seen.samples if sample.metrics is not None]
        fifth = len(found) // 5
        if not fifth:
            return None, len(found)
        early, late = (
            statistics.median(part) for part in (found[fifth : 2 * fifth], found[-fifth:])
        )
        return (late / early - 1 if early else late), len(found)

    return measure


#: After the name a department may follow, or the signal of a breaker: ``ttft_p99.fin``.
MEASURES: dict[str, Measure] = {
    "wrong_routes": wrong_routes,
    "errors": errors,
    "let_in": let_in,
    "transport": transport,
    "changes_failed": changes_failed,
    "requests": requests,
    "tokens_per_s": tokens_per_s,
    "late_p99": late_p99,
    **{f"ttft_p{p}": _at(_ttfts, p) for p in (50, 95, 99)},
    **{f"total_p{p}": _at(_totals, p) for p in (50, 95, 99)},
    **{f"ttft_p{p}_ratio": _ratio(_ttfts, p) for p in (50, 95, 99)},
    "longest_gap_p50_ratio": _ratio(_longest_gaps, 50),
    "open_s": open_s,
    "open_at_end": open_at_end,
    "rss_growth": _growth(lambda sample: sum(sample.rss.values())),
    "fds_growth": _growth(lambda sample: sum(sample.fds.values())),
    "threads_growth": _growth(lambda sample: sum(sample.threads.values())),
    "shm_growth": _growth(lambda sample: sample.shm),
    "series_growth": _growth(lambda sample: sample.series),
}


def measured(seen: Seen, name: str) -> Figure:
    """The figure of a name as it stands in a budget."""
    measure, _, part = name.partition(".")
    return MEASURES[measure](seen, part)
