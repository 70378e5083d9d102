"""What protections cost: the run with them beside runs of the same trace without some of them."""

from __future__ import annotations

from collections.abc import Sequence

from tools.report.figures import Cost, Number, Quantiles, Side
from tools.report.reading import ReportProblem
from tools.report.statistics import ratio


def missing(base: Side, other: Side) -> tuple[str, ...]:
    """The protections that are on in ``base`` and off in ``other``.

    Raises:
        ReportProblem: ``other`` has one that ``base`` lacks: the difference is nobody's cost.
    """
    names = sorted({*base.protections, *other.protections})
    on = [name for name in names if base.protections.get(name, False)]
    extra = [n for n in names if other.protections.get(n, False) and n not in on]
    if extra:
        raise ReportProblem(
            f"{other.folder} has {', '.join(extra)} on and {base.folder} has not: a cost is "
            "measured against the run that has all protections on"
        )
    return tuple(name for name in on if not other.protections.get(name, False))


def costs(base: Side, others: Sequence[Side]) -> tuple[Cost, ...]:
    """A row for each run that lacks a protection, those that lack the fewest first."""
    rows = [(missing(base, other), other) for other in others]
    rows.sort(key=lambda row: (len(row[0]), row[0]))
    return tuple(_cost(base, other, off) for off, other in rows if off)


def _cost(base: Side, other: Side, off: tuple[str, ...]) -> Cost:
    ours, theirs = base.departments[0], other.departments[0]
    return Cost(
        protections=off,
        without=other.folder,
        ttft_p50=ratio(_number(ours.ttft, "p50"), _number(theirs.ttft, "p50")),
        ttft_p99=ratio(_number(ours.ttft, "p99"), _number(theirs.ttft, "p99")),
        # The other way round, so that above 1 always means that it costs.
        throughput=ratio(theirs.tokens_per_s, ours.tokens_per_s),
        memory_peak=ratio(base.memory.peak, other.memory.peak),
    )


def _number(quantiles: Quantiles, which: str) -> Number:
    return Number(value=getattr(quantiles, which), n=quantiles.n)
