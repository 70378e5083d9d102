"""Results for a person to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLOURS = {"ready": "green", "failed": "red", "disabled": "yellow", "removing": "yellow"}


def adapters(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The table of ``list``."""
    table = Table(box=None, pad_edge=False)
    for name in ("lora_id", "state", "digest", "rank", "MiB", "where", "uses", "last", "reason"):
        right = name in ("rank", "MiB", "uses")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=name != "reason", overflow="fold"
        )
    for row in rows:
        state = str(row["state"])
        where = ",".join(row["tiers"]) + (" pinned" if row["pinned"] else "")
        # As text and not as markup: reasons quote names that came with a file.
        table.add_row(
            Text(str(row["lora_id"])),
            Text(state, _COLOURS.get(state, "")),
            Text(str(row["digest"])[:12]),
            str(row["rank"]),
            f"{row['size_bytes'] / (1 << 20):.1f}",
            where,
            str(row["uses"]),
            ago(row["last_use_s_ago"]),
            Text(str(row["reason"])),
        )
    return table


def breakers(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The table of ``breakers``."""
    table = Table(box=None, pad_edge=False)
    for name in ("breaker", "state", "opened", "retry after s"):
        table.add_column(name, no_wrap=True, justify="right" if name == "opened" else "left")
    for row in rows:
        state = str(row["state"])
        wait = row["retry_after_s"]
        table.add_row(
            Text(str(row["breaker"])),
            Text(state, "green" if state == "closed" else "yellow"),
            str(row["opened"]),
            "–" if wait is None else f"{wait:.0f}",
        )
    return table


def changed(console: Console, body: Mapping[str, Any]) -> None:
    """What came of a change that may have found nothing to do."""
    console.print(Text(str(body["status"]) if body["changed"] else "was closed already"))


def ago(seconds: float | None) -> str:
    """A span in one unit, such as ``5 min``; a dash for never."""
    if seconds is None:
        return "–"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def pairs(console: Console, body: Mapping[str, Any]) -> None:
    """One line for each key, nested ones in one."""
    width = max((len(name) for name in body), default=0)
    for name, value in body.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(str, value)) or "none"
        console.print(Text(f"{name:<{width}}  {'none' if value is None else value}"))
