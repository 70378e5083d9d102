"""Figures of engine benchmarks: tables of ratios taken within one run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Promise:
    """A figure beside what it should be. ``held`` is None where nothing was promised."""

    text: str
    value: float
    wanted: str = ""
    held: bool | None = None


@dataclasses.dataclass(frozen=True)
class Figures:
    """One benchmark's outcome: a table, promises, and how busy the machine was."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    promises: tuple[Promise, ...]
    load_average: tuple[float, ...] = dataclasses.field(default_factory=os.getloadavg)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    def show(self) -> None:
        """Prints them."""
        table = Table(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        console = Console(width=140)
        console.print(table)
        for promise in self.promises:
            mark = {None: "  ", True: "ok", False: "MISSED"}[promise.held]
            line = f"{mark} {promise.text}: {promise.value:.3f} {promise.wanted}"
            console.print(line.rstrip(), highlight=False)
        load = ", ".join(f"{value:.1f}" for value in self.load_average)
        console.print(f"load average {load}", highlight=False)

    @property
    def held(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.held is not False for promise in self.promises)


@dataclasses.dataclass(frozen=True)
class Window:
    """What one server did while it was loaded; ``cpu_s`` is of all its processes."""

    tokens: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def cpu_ms_per_token(self) -> float:
        """Processor time, milliseconds."""
        return 1e3 * self.cpu_s / self.tokens


class EngineScenario(Protocol):
    """A module in this package that measures on the real engine."""

    async def measure(self, demo: Path, *, quick: bool) -> Figures:
        """Measures with the model and adapters of a demo folder."""


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that ``percent`` of the values do not exceed; 0 of nothing."""
    ordered: Sequence[float] = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
