"""The plots of a report. Colours are Okabe and Ito's, told apart by the colour-blind; what a colour
says, a pattern, a dash or a text says too, for print in black and white.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from tools.report.figures import Report, Side

#: Before, after: vermillion and blue, which differ in lightness too.
SIDES = ("#D55E00", "#0072B2")
_PATTERNS, _DASHES = ("/", ""), ("dash", "solid")
STATES = {
    "closed": ("#DDDDDD", ""),
    "warning": ("#E69F00", "."),
    "open": ("#D55E00", "x"),
    "half-open": ("#56B4E9", "/"),
    "server down": ("#000000", ""),
}
_FAULT = "#CC79A7"


def charts(report: Report) -> dict[str, go.Figure]:
    """The figures by the name of their place on the page; what has no data is left out."""
    found = {
        "ttft": _quantiles(report.sides, "ttft"),
        "total": _quantiles(report.sides, "total"),
        "curve": _curve(report.sides),
        "answers": _over_time(report.sides, "answers_over_time", "answers a second", 1.0),
        "memory": _over_time(report.sides, "memory_over_time", "GiB", 2.0**30),
        "fragmentation": _fragmentation(report.sides),
        "refusals": _refusals(report.sides),
        "breakers": _breakers(report.sides),
    }
    return {name: figure for name, figure in found.items() if figure.data}


def _figure(*, x: str = "", y: str = "", height: int = 360, **layout: Any) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
        font={"family": "system-ui, sans-serif", "size": 14, "color": "#111"},
        legend={"orientation": "h", "y": -0.25},
        xaxis={"title": {"text": x}, "automargin": True},
        yaxis={"title": {"text": y}, "automargin": True, "rangemode": "tozero"},
        **layout,
    )
    return figure


def _label(side: Side) -> str:
    return escape(side.label)


def _quantiles(sides: Sequence[Side], of: str) -> go.Figure:
    figure = _figure(y="seconds", barmode="group")
    for number, side in enumerate(sides):
        rows = [(d, q) for d in side.departments if (q := getattr(d, of)).p99 is not None]
        if not rows:
            continue
        figure.add_bar(
            name=f"{_label(side)}: P99, mark at P50",
            x=[f"{escape(d.name)}" for d, _ in rows],
            y=[q.p99 for _, q in rows],
            text=[f"n={q.n}" for _, q in rows],
            textposition="outside",
            marker={"color": SIDES[number], "pattern": {"shape": _PATTERNS[number]}},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [0] * len(rows),
                "arrayminus": [q.p99 - q.p50 for _, q in rows],
                "color": "#111",
            },
        )
    return figure


def _curve(sides: Sequence[Side]) -> go.Figure:
    figure = _figure(x="seconds to the first token", y="% of answers")
    figure.update_xaxes(type="log")
    for number, side in enumerate(sides):
        if side.ttft_curve:
            figure.add_scatter(
                name=f"{_label(side)}, n={side.departments[0].ttft.n}",
                x=[max(value, 1e-3) for value in side.ttft_curve],
                y=list(range(len(side.ttft_curve))),
                mode="lines",
                line={"color": SIDES[number], "dash": _DASHES[number], "shape": "hv"},
            )
    return figure


def _over_time(sides: Sequence[Side], of: str, unit: str, scale: float) -> go.Figure:
    figure = _figure(x="seconds since the start", y=unit)
    for number, side in enumerate(sides):
        series = getattr(side, of)
        if any(value is not None for value in series.values):
            figure.add_scatter(
                name=_label(side),
                x=list(series.t),
                y=[None if value is None else value / scale for value in series.values],
                mode="lines",
                line={"color": SIDES[number], "dash": _DASHES[number]},
            )
    # Both runs have the same faults at the same times, to a moment.
    faults = {(round(f.t), f.fault) for side in sides for f in side.recovery.faults}
    for t, name in sorted(faults):
        figure.add_vline(
            x=t,
            line={"color": _FAULT, "dash": "dot"},
            annotation={"text": escape(name), "textangle": -90, "font": {"size": 11}},
        )
    return figure


def _fragmentation(sides: Sequence[Side]) -> go.Figure:
    figure = _figure(x="seconds since the start", y="% not used of what is held")
    for number, side in enumerate(sides):
        for which, series in enumerate(side.fragmentation):
            figure.add_scatter(
                name=f"{_label(side)}: {escape(series.name)}",
                x=list(series.t),
                y=[None if value is None else 100 * value for value in series.values],
                mode="lines",
                line={"color": SIDES[number], "dash": _DASHES[number], "width": 2 + which},
            )
    return figure


def _refusals(sides: Sequence[Side]) -> go.Figure:
    names = list(dict.fromkeys((r.reason, r.kind) for side in sides for r in side.refusals))
    figure = _figure(x="requests", barmode="group", height=160 + 60 * len(names))
    for number, side in enumerate(sides):
        counts = {(r.reason, r.kind): r.count for r in side.refusals}
        if not names:
            continue
        figure.add_bar(
            name=f"{_label(side)}, of n={side.requests}",
            y=[f"{escape(reason)}<br>({escape(kind)})" for reason, kind in names],
            x=[counts.get(name, 0) for name in names],
            text=[str(counts.get(name, 0)) for name in names],
            orientation="h",
            marker={"color": SIDES[number], "pattern": {"shape": _PATTERNS[number]}},
        )
    figure.update_yaxes(autorange="reversed")
    return figure


def _breakers(sides: Sequence[Side]) -> go.Figure:
    rows = [(side, signal) for side in sides for signal in _signals(side)]
    figure = _figure(x="seconds since the start", barmode="overlay", height=160 + 40 * len(rows))
    for state, (colour, pattern) in STATES.items():
        parts = [
            (f"{_label(side)}<br>{escape(interval.signal)}", interval)
            for side in sides
            for interval in side.breakers
            if interval.state == state
        ]
        if parts:
            figure.add_bar(
                name=state,
                y=[row for row, _ in parts],
                base=[interval.begin for _, interval in parts],
                x=[interval.end - interval.begin for _, interval in parts],
                orientation="h",
                marker={"color": colour, "pattern": {"shape": pattern}},
            )
    figure.update_yaxes(autorange="reversed")
    return figure


def _signals(side: Side) -> list[str]:
    return list(dict.fromkeys(interval.signal for interval in side.breakers))
