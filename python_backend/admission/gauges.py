"""What admission shows: who waits and who is in the engine, by department."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from python_backend.admission.waiting import Admission
from python_backend.metrics import Family, Update

QUEUE_DEPTH = "lora_queue_depth"
IN_ENGINE = "lora_requests_in_engine"
SWITCHES = "lora_switches_planned_total"

FAMILIES = (
    Family(QUEUE_DEPTH, "gauge", "Sequences that wait for the engine.", ("department",)),
    Family(IN_ENGINE, "gauge", "Sequences in the engine.", ("department",)),
    Family(SWITCHES, "counter", "Adapters given a slot that another one had."),
)

_EVERY_S = 0.25


class Gauges:
    """Reports an admission's numbers when they have changed, a few times a second at most.

    A department's gauges go back to 0 when it has nothing pending. Department names come out of
    signed tickets, so there are no more series than departments in the policy.
    """

    def __init__(self, admission: Admission, put: Callable[[Sequence[Update]], None]) -> None:
        self._admission, self._put = admission, put
        self._shown: dict[str, tuple[int, int]] = {}
        self._switches = 0
        self._planned = False
        admission.on_change = self.changed

    def changed(self) -> None:
        """Something has changed; on the loop."""
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_later(_EVERY_S, self.report)

    def report(self) -> None:
        """Reports what has changed since the last time."""
        self._planned = False
        self._put(self.updates())

    def updates(self) -> list[Update]:
        """What has changed since the last time."""
        pending = self._admission.under_way
        inside = {d.name: d.in_engine + d.ending for d in self._admission.scheduler.departments()}
        found: list[Update] = []
        for name in {*pending, *self._shown}:
            running = inside.get(name, 0)
            now = (pending.get(name, 0) - running, running)
            if self._shown.get(name, (0, 0)) != now:
                labels = (("department", name),)
                found.append(Update(QUEUE_DEPTH, (now[0],), labels))
                found.append(Update(IN_ENGINE, (now[1],), labels))
            self._shown[name] = now
            if now == (0, 0):
                del self._shown[name]
        switches = self._admission.scheduler.slots.switches
        if switches != self._switches:
            found.append(Update(SWITCHES, (switches - self._switches,)))
            self._switches = switches
        return found
