"""Metrics: declared in tables, created once, written off the caller's thread.

Nothing here raises into its caller: a metric that cannot be created or written is counted and
logged once. Triton never removes a series, so label values must come from bounded sets.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from python_backend.metric_windows import Kind, Labels, Update, Windows

__all__ = ["Backend", "Family", "MakeSeries", "Metrics", "MetricsOff", "Update", "Write"]

log = logging.getLogger(__name__)

#: Updates that wait to be written, at most; beyond, they are dropped and counted.
MAX_WAITING = 10_000
#: How often what waits is written, seconds. Not at once: each write is a call into Triton, and
#: would take turns with the request that it is about; what a window holds is written as one.
WRITE_EVERY_S = 0.5
_STOP_S = 10.0


@dataclasses.dataclass(frozen=True)
class Family:
    """One metric with all its series.

    Args:
        labels: names of the labels beside the constant ones; a family without any has one series,
            which is there from the start.
        buckets: upper bounds of a histogram, ascending, without infinity.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


#: Writes one value of one series: adds it to a counter, sets a gauge, observes it in a histogram.
Write = Callable[[float], None]
#: Makes the series with these labels.
MakeSeries = Callable[[Mapping[str, str]], Write]


class MetricsOff(Exception):
    """The server was started without metrics."""


class Backend(Protocol):
    """Where metrics are shown."""

    def create(self, family: Family) -> MakeSeries:
        """Creates a family. Raises ``MetricsOff``, or whatever else stops it."""


class Metrics:
    """The families of one model and the thread that writes them.

    Args:
        backend: None where metrics are not wanted: every call is then without effect.
        constant: labels of every series, such as the model's name.

    ``failures`` counts what could not be created, written or queued.
    """

    def __init__(self, backend: Backend | None, constant: Mapping[str, str]) -> None:
        self._backend, self._constant = backend, dict(constant)
        self._makers: dict[str, MakeSeries] = {}
        self._kinds: dict[str, Kind] = {}
        self._windows = Windows()
        self._series: dict[tuple[str, Labels], Write] = {}
        self._queue: queue.SimpleQueue[Sequence[Update]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged: set[str] = set()
        self.failures = 0

    @property
    def wanted(self) -> bool:
        """Whether anything is shown at all, as far as is known."""
        return self._backend is not None

    def declare(self, families: Iterable[Family]) -> None:
        """Creates families; one that is there already is left as it is."""
        for family in families:
            if self._backend is None:
                return
            if family.name in self._makers:
                continue
            try:
                self._makers[family.name] = self._backend.create(family)
                self._kinds[family.name] = family.kind
                if not family.labels:
                    self._write_of(Update(family.name, ()))
            except MetricsOff:
                log.info("[vllm] Metrics not supported")
                self._backend = None
            except Exception:
                self._failed(family.name)
        if self._makers and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
            self._thread.start()

    def put(self, updates: Sequence[Update]) -> None:
        """Queues updates; never blocks. Those for families that were not created are dropped."""
        if self._thread is None or not updates:
            return
        if self._queue.qsize() >= MAX_WAITING:
            self.failures += 1
            return
        self._queue.put(updates)

    def _run(self) -> None:
        while not self._stopped.wait(WRITE_EVERY_S):
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        waiting: list[Update] = []
        while not self._queue.empty():
            waiting += self._queue.get()
        for update in self._windows.merged(waiting, self._kinds, time.monotonic()):
            try:
                write = self._write_of(update)
                for value in update.values:
                    write(value)
            except Exception:
                self._failed(update.name)

    def _write_of(self, update: Update) -> Write:
        key = (update.name, update.labels)
        write = self._series.get(key)
        if write is None:
            # Kept for good: the series stays on the server whatever becomes of this object.
            write = self._makers[update.name]({**self._constant, **dict(update.labels)})
            self._series[key] = write
        return write

    def _failed(self, name: str) -> None:
        self.failures += 1
        if name not in self._logged:
            self._logged.add(name)
            log.exception("metric %s cannot be written; later failures are only counted", name)

    def stop(self) -> None:
        """Writes what is queued, then ends the thread. Callable more than once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            thread.join(timeout=_STOP_S)
