"""The figures as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_COLOURS = {"closed": "green", "warning": "yellow", "half-open": "yellow", "open": "red"}


def screen(shown: Mapping[str, Any]) -> RenderableType:
    """Everything, one table under the other."""
    parts: list[RenderableType] = [_departments(shown["departments"]), _signals(shown["signals"])]
    adapters = _pairs(shown["adapters"]) or "none"
    parts.append(Text(f"adapters  {adapters}    where  {_pairs(shown['tiers']) or 'not known'}"))
    parts.append(Text(f"busiest   {_pairs(shown['busiest']) or 'none yet'}"))
    parts.append(Text(f"gate      {_pairs(shown['gate']) or 'nothing decided yet'}"))
    if shown["policy_error"]:
        parts.append(Text("the policy file cannot be used; the last good one is in force", "red"))
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        left = column in ("department", "signal", "state")
        table.add_column(column, justify="left" if left else "right")
    return table


def _departments(departments: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("department", "waiting", "running", "req/s", "tokens/s", "requests", "not ok")
    for name, row in departments.items():
        table.add_row(
            Text(name),
            *map(_number, (row["waiting"], row["running"])),
            *map(_number, (row["requests_per_s"], row["tokens_per_s"])),
            *map(_number, (row["requests"], row["not_ok"])),
        )
    return table


def _signals(signals: Mapping[str, Mapping[str, Any]]) -> Table:
    table = _table("signal", "value", "state", "refused")
    for name, row in signals.items():
        state = row["state"] or "–"
        table.add_row(
            name,
            _number(row["value"]),
            Text(state, _COLOURS.get(state, "")),
            _number(row["refused"]),
        )
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def _pairs(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name or 'all'} {_number(value)}" for name, value in values.items())
