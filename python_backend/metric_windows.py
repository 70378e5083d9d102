"""What a window's updates come to, so that few writes are made of many. Pure.

Each write is a call from the model's process into the server's (about 60 µs of both). Increments of
a counter add up to one, of a gauge only the last value counts. A histogram takes its values one by
one: a series that gets more than it may is thinned evenly, so that its quantiles and its mean stay
right, and its count becomes less than what there was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]

#: Values a second that a histogram's series takes for long, and at once after a pause.
VALUES_PER_S, VALUES_AT_ONCE = 5.0, 64.0


@dataclasses.dataclass(frozen=True)
class Update:
    """Values for one series, in order."""

    name: str
    values: Sequence[float]
    labels: Labels = ()


class Windows:
    """Merges windows of updates; keeps what each histogram's series may still take."""

    def __init__(self) -> None:
        self._allowed: dict[tuple[str, Labels], tuple[float, float]] = {}

    def merged(
        self, updates: Iterable[Update], kinds: Mapping[str, Kind], now_s: float
    ) -> list[Update]:
        """One update for each series of ``kinds``, in the order of their first; others fall out."""
        values: dict[tuple[str, Labels], list[float]] = {}
        for update in updates:
            if update.name in kinds:
                values.setdefault((update.name, update.labels), []).extend(update.values)
        found = []
        for (name, labels), seen in values.items():
            kind = kinds[name]
            if kind == "counter":
                few: Sequence[float] = (sum(seen),) if seen else ()
            elif kind == "gauge":
                few = seen[-1:]
            else:
                few = self._thinned((name, labels), seen, now_s)
            found.append(Update(name, few, labels))
        return found

    def _thinned(
        self, series: tuple[str, Labels], seen: Sequence[float], now_s: float
    ) -> Sequence[float]:
        left, since_s = self._allowed.get(series, (VALUES_AT_ONCE, now_s))
        left = min(VALUES_AT_ONCE, left + (now_s - since_s) * VALUES_PER_S)
        count = min(len(seen), max(1, int(left)))
        self._allowed[series] = (max(0.0, left - count), now_s)
        return [seen[number * len(seen) // count] for number in range(count)]
