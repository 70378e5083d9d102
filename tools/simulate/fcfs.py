"""Plain first come, first served: what vLLM does alone, for comparison."""

from __future__ import annotations

from python_backend.admission.department import Department, Request
from python_backend.admission.limits import Share
from python_backend.admission.slots import Slots


class FirstCome:
    """The oldest request that can enter, whoever's it is.

    As in vLLM, one whose adapter finds no slot is passed by those behind it.
    """

    def __init__(self, seats: int, slots: int) -> None:
        self._seats, self._slots = seats, Slots(slots)
        self._queue = Department("all", Share())
        self._in_engine = self._arrivals = self._admissions = 0

    @property
    def switches(self) -> int:
        """How often an adapter took another one's slot."""
        return self._slots.switches

    @property
    def held(self) -> bool:
        """Nobody ever waits for a step to end."""
        return False

    def stepped(self) -> bool:
        """A step has ended."""
        return False

    def enqueue(self, request: Request, now_s: float) -> None:
        """A request begins to wait."""
        self._arrivals += 1
        request.arrival, request.waiting = self._arrivals, True
        self._queue.push(request)

    def admit(self, now_s: float) -> Request | None:
        """The request that enters now, or None."""
        if self._in_engine >= self._seats or not self._queue.queued:
            return None
        request = self._next()
        if request is not None:
            request.waiting, request.running = False, True
            self._queue.remove(request)
            self._in_engine += 1
            self._admissions += 1
            if request.adapter is not None:
                self._slots.enter(request.adapter, request.department, self._admissions)
        return request

    def _next(self) -> Request | None:
        if self._slots.free:
            return next(self._queue.by_age(), None)
        heads = [self._queue.head(None)]
        heads += [self._queue.head(a) for a in self._slots.resident()]
        there = [head for head in heads if head is not None]
        return min(there, key=lambda head: head.arrival, default=None)

    def leave(self, request: Request, now_s: float) -> None:
        """A request ends."""
        request.running = False
        self._in_engine -= 1
        if request.adapter is not None:
            self._slots.leave(request.adapter, request.department)
