"""The arithmetic of a report: shares with their interval, quantiles, counters that start anew."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from tools.bench.figures import percentile
from tools.report.figures import Number, Quantiles, Series, Share

#: Of the normal distribution: 95 % lie within so many standard deviations.
_Z = 1.959964
#: With no more samples than this the P99 is the largest of them.
THIN = 100
#: Most points of a line: a screen shows no more.
POINTS = 400


def share(part: int, n: int) -> Share:
    """``part`` of ``n`` with Wilson's interval, which is right at 0 of many too."""
    if n == 0:
        return Share(part=part, n=0, value=None, low=None, high=None)
    p, z2 = part / n, _Z * _Z
    middle = p + z2 / (2 * n)
    half = _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low, high = (middle - half) / (1 + z2 / n), (middle + half) / (1 + z2 / n)
    return Share(part=part, n=n, value=p, low=max(0.0, low), high=min(1.0, high))


def quantiles(values: Iterable[float]) -> Quantiles:
    """The usual three."""
    found = sorted(values)
    p50, p95, p99 = (percentile(found, p) if found else None for p in (50, 95, 99))
    return Quantiles(n=len(found), p50=p50, p95=p95, p99=p99, thin=len(found) <= THIN)


def curve(values: Iterable[float]) -> tuple[float, ...]:
    """The values at 0, 1, … 100 %; nothing of nothing."""
    found = sorted(values)
    return tuple(percentile(found, p) for p in range(101)) if found else ()


def gained(values: Sequence[float]) -> float:
    """How much a counter has grown; one that has fallen belongs to a new server, from 0."""
    return sum(new - old if new >= old else new for old, new in itertools.pairwise(values))


def ratio(over: Number, under: Number) -> Number:
    """One number over another; as sure as the one of fewer samples."""
    n = min(over.n, under.n)
    if over.value is None or not under.value:
        return Number(value=None, n=n)
    return Number(value=over.value / under.value, n=n)


def thinned(name: str, points: Sequence[tuple[float, float | None]]) -> Series:
    """A line of at most ``POINTS`` points: of neighbours the largest stays, a gap stays a gap."""
    step = max(1, math.ceil(len(points) / POINTS))
    kept = []
    for begin in range(0, len(points), step):
        bucket = points[begin : begin + step]
        gaps = [point for point in bucket if point[1] is None]
        kept.append(gaps[0] if gaps else max(bucket, key=lambda point: point[1] or 0.0))
    return Series(name=name, t=tuple(p[0] for p in kept), values=tuple(p[1] for p in kept))


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of what intervals cover together."""
    covered, until = 0.0, -math.inf
    for begin, end in sorted(intervals):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered
