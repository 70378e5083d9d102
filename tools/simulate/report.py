"""A simulation's figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from tools.simulate.engine import Chooser, Done


@dataclasses.dataclass(frozen=True)
class Row:
    """One department's figures, or those of ``all``. Times are seconds."""

    who: str
    requests: int
    tokens_per_s: float
    #: Tokens read + 2·tokens written, a second.
    service_per_s: float
    ttft_p50: float
    ttft_p99: float
    ttft_max: float


@dataclasses.dataclass(frozen=True)
class Report:
    """All figures of one run."""

    order: str
    rows: tuple[Row, ...]
    span_s: float
    switches_per_1000: float

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def report(order: str, ended: Iterable[Done], chooser: Chooser) -> Report:
    """The figures of what has ended, all of it and by department."""
    names: list[str] = []
    columns: list[tuple[float, int, int]] = []
    span_s = 0.0
    for done in ended:
        names.append(done.job.department)
        columns.append((done.first_s - done.job.at_s, done.job.tokens, done.job.output))
        span_s = max(span_s, done.end_s)
    values = np.array(columns, dtype=float).reshape(-1, 3)
    who = np.array(names)
    rows = [_row("all", values, span_s)]
    rows += [_row(str(name), values[who == name], span_s) for name in np.unique(who)]
    per_1000 = 1000 * chooser.switches / max(1, len(names))
    return Report(order, tuple(rows), span_s, per_1000)


def _row(who: str, values: Any, span_s: float) -> Row:
    ttft, tokens, output = values.T
    seconds = span_s or 1.0
    p50, p99, most = np.percentile(ttft, [50, 99, 100]) if len(ttft) else (0.0, 0.0, 0.0)
    return Row(
        who,
        len(ttft),
        float(output.sum() / seconds),
        float((tokens + 2 * output).sum() / seconds),
        float(p50),
        float(p99),
        float(most),
    )


def table(reports: Iterable[Report]) -> str:
    """The figures for people."""
    lines = [
        f"{'order':<11}{'who':<8}{'requests':>9}{'tok/s':>9}{'service/s':>11}"
        f"{'TTFT p50':>10}{'p99':>9}{'max':>9}{'switches/1000':>15}"
    ]
    for one in reports:
        for row in one.rows:
            switches = f"{one.switches_per_1000:15.1f}" if row.who == "all" else ""
            lines.append(
                f"{one.order:<11}{row.who:<8}{row.requests:>9}{row.tokens_per_s:>9.1f}"
                f"{row.service_per_s:>11.1f}{row.ttft_p50:>10.2f}{row.ttft_p99:>9.2f}"
                f"{row.ttft_max:>9.2f}{switches}"
            )
    return "\n".join(lines)
