"""A scheduler and an engine that writes one token a step for each sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from python_backend.admission.department import OUTPUT_COST, Request
from python_backend.admission.limits import Limits, Share
from python_backend.admission.scheduler import Scheduler


class World:
    """Requests with a known length; after every act the accounts are compared with a plain count.

    ``entered`` lists what was admitted in order, ``waits`` the admissions that each had waited,
    ``service`` the tokens each department has had, read + 2·written.
    """

    def __init__(self, limits: Limits, shares: dict[str, Share] | None = None) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits, shares)
        self.now_s = 0.0
        self.waiting: list[Request] = []
        self.running: dict[Request, int] = {}
        self.lengths: dict[Request, int] = {}
        self.began: dict[Request, int] = {}
        self.entered: list[Request] = []
        self.waits: dict[Request, int] = {}
        self.service: Counter[str] = Counter()
        self.on_end: Callable[[Request], object] = lambda request: None

    def send(
        self,
        department: str,
        adapter: int | None = None,
        *,
        length: int = 4,
        tokens: int = 5,
        seats: int = 1,
        max_tokens: int | None = None,
    ) -> Request:
        request = Request(department, adapter, seats, tokens, max_tokens or length)
        self.lengths[request] = length
        self.began[request] = self.scheduler.admissions
        self.scheduler.enqueue(request, self.now_s)
        self.waiting.append(request)
        self.check()
        return request

    def admit(self) -> list[Request]:
        """All that may enter now."""
        entered = []
        while (request := self.scheduler.admit(self.now_s)) is not None:
            self.waiting.remove(request)
            self.running[request] = self.lengths[request]
            self.service[request.department] += request.tokens
            self.waits[request] = self.scheduler.admissions - 1 - self.began[request]
            entered.append(request)
            self.check()
        self.entered += entered
        return entered

    def step(self) -> list[Request]:
        """One step of the engine; returns what ended with it."""
        self.now_s += 1
        self.scheduler.stepped()
        ended = []
        for request in list(self.running):
            self.running[request] -= 1
            self.scheduler.produced(request, request.seats)
            self.service[request.department] += int(OUTPUT_COST) * request.seats
            if not self.running[request]:
                self.end(request)
                ended.append(request)
        for request in ended:
            self.on_end(request)
        return ended

    def end(self, request: Request) -> None:
        """A request ends or is cancelled, waiting or running."""
        self.scheduler.leave(request, self.now_s)
        self.scheduler.leave(request, self.now_s)  # a second time changes nothing
        self.running.pop(request, None)
        if request in self.waiting:
            self.waiting.remove(request)
        self.check()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.admit()
            self.step()

    def finish(self) -> None:
        """Runs until nothing is left."""
        for _ in range(100_000):
            self.admit()
            if not self.running:
                break
            self.step()
        assert not self.waiting, "work was left although the engine was empty"
        assert self.scheduler.queued == self.scheduler.in_engine == self.scheduler.ending == 0
        assert self.scheduler.slots.free == self.limits.slots
        assert not self.scheduler.slots.emptying

    def check(self) -> None:
        scheduler, limits = self.scheduler, self.limits
        seats = sum(request.seats for request in self.running if not request.ending)
        assert scheduler.queued == len(self.waiting)
        assert scheduler.ending == sum(r.seats for r in self.running if r.ending)
        assert scheduler.in_engine == seats <= limits.seats + limits.reserve_seats
        adapters = {r.adapter for r in self.running if r.adapter is not None and not r.ending}
        assert len(adapters) == limits.slots - scheduler.slots.free <= limits.slots
        for department in scheduler.departments():
            name = department.name
            mine = [r for r in self.running if r.department == name]
            assert department.queued == sum(r.department == name for r in self.waiting)
            assert department.in_engine == sum(r.seats for r in mine if not r.ending)
            assert department.ending == sum(r.seats for r in mine if r.ending)
            assert department.adapters_in_flight == len(
                {r.adapter for r in mine if r.adapter is not None and not r.ending}
            )

    def could_enter(self) -> list[Request]:
        """What waits although seat and slot are there that nobody is kept from by design."""
        scheduler, limits = self.scheduler, self.limits
        if scheduler.in_engine >= limits.seats:
            return []
        free = scheduler.slots.free - limits.kept_slots
        return [
            request
            for request in self.waiting
            if scheduler.in_engine + request.seats <= limits.seats
            and (
                request.adapter is None
                or free > 0
                or (
                    scheduler.slots.is_in_flight(request.adapter)
                    and request.adapter not in scheduler.slots.emptying
                )
            )
        ]
