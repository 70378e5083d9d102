"""What every scenario takes and gives."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Options:
    """How much to measure: ``rounds`` timed calls of each case, after ``warm_up`` untimed ones."""

    rounds: int = 5000
    warm_up: int = 500


@dataclasses.dataclass(frozen=True)
class Case:
    """One measured case: microseconds per call."""

    name: str
    calls: int
    p50_us: float
    p99_us: float
    mean_us: float


@dataclasses.dataclass(frozen=True)
class Result:
    """A scenario's cases, and whether they hold what was promised (``checks``: text → held)."""

    scenario: str
    cases: tuple[Case, ...]
    checks: dict[str, bool]


class Scenario(Protocol):
    """A module in this package."""

    def run(self, options: Options) -> Result:
        """Measures."""


def measure(name: str, calls: Iterable[Callable[[], object]], options: Options) -> Case:
    """Times calls one by one; the first ``warm_up`` do not count.

    Args:
        calls: endless, or at least ``warm_up + rounds`` long.
    """
    took: list[int] = []
    for number, call in enumerate(calls):
        if number == options.warm_up + options.rounds:
            break
        began = time.perf_counter_ns()
        call()
        if number >= options.warm_up:
            took.append(time.perf_counter_ns() - began)
    took.sort()
    return Case(
        name,
        len(took),
        p50_us=round(took[len(took) // 2] / 1e3, 1),
        p99_us=round(took[len(took) * 99 // 100] / 1e3, 1),
        mean_us=round(sum(took) / len(took) / 1e3, 1),
    )
