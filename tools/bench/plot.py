"""One page a scenario: its table as bars, and what was promised of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

_MARKS = {None: "", True: "ok", False: "MISSED"}


def table(body: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(columns, rows) of what ``--json`` printed, whichever kind of scenario it was."""
    if "cases" in body:
        names = ["p50_us", "p99_us", "mean_us"]
        rows = [[case["name"], *(str(case[name]) for name in names)] for case in body["cases"]]
        return ["case", "p50 µs", "p99 µs", "mean µs"], rows
    return list(body["columns"]), [list(row) for row in body["rows"]]


def promises(body: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, value, "ok", "MISSED" or nothing) of what ``--json`` printed."""
    if "checks" in body:
        return [(text, "", _MARKS[held]) for text, held in body["checks"].items()]
    return [
        (
            f"{one['text'].strip()} {one['wanted']}".strip(),
            f"{one['value']:.3f}",
            _MARKS[one["held"]],
        )
        for one in body["promises"]
    ]


def bars(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """The numbers of each column by case; columns without any are left out."""
    found: dict[str, dict[str, float]] = {}
    for number, column in enumerate(columns[1:], 1):
        for row in rows:
            value = _number(row[number])
            if value is not None:
                found.setdefault(column or "value", {})[row[0]] = value
    return found


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def write(name: str, body: Mapping[str, Any], folder: Path) -> Path:
    """Writes ``<name>.html`` into a folder, beside the one script that all such pages share."""
    found = bars(*table(body))
    specs: list[list[dict[str, Any]]] = [[{"type": "bar"}] for _ in found] + [[{"type": "table"}]]
    figure = make_subplots(len(specs), 1, specs=specs, subplot_titles=[*found, "promised"])
    for number, values in enumerate(found.values(), 1):
        cases = [*values][::-1]
        trace = go.Bar(
            y=cases, x=[values[case] for case in cases], orientation="h", showlegend=False
        )
        figure.add_trace(trace, number, 1)
    cells = [list(column) for column in zip(*promises(body), strict=True)] or [[], [], []]
    header = {"values": ["what", "value", ""]}
    figure.add_trace(go.Table(header=header, cells={"values": cells}), len(specs), 1)
    figure.update_layout(title=name, height=320 * len(specs), margin={"l": 320})
    path = folder / f"{name}.html"
    figure.write_html(path, include_plotlyjs="directory")
    return path
