"""What the metrics endpoint shows already, so that only what has changed is written."""

from __future__ import annotations

import math

from python_backend.metric_windows import Labels, Update


class Shown:
    """Gauges and counters as they were last written."""

    def __init__(self) -> None:
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._counts: dict[tuple[str, Labels], float] = {}

    def gauge(self, name: str, value: float, *labels: tuple[str, str]) -> list[Update]:
        """An update if the value has changed; what is no number is not shown."""
        if math.isnan(value) or self._gauges.get((name, labels)) == value:
            return []
        self._gauges[name, labels] = value
        return [Update(name, (value,), labels)]

    def count(self, name: str, value: float, *labels: tuple[str, str]) -> list[Update]:
        """What a counter has gained; 0 the first time, so that its series is there."""
        before = self._counts.get((name, labels))
        self._counts[name, labels] = value
        if before is None:
            return [Update(name, (value,), labels)]
        return [Update(name, (value - before,), labels)] if value > before else []
