"""What admission keeps count of: who waits, who runs, what each department has had. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from python_backend.admission.department import OUTPUT_COST, Department, Request, moved
from python_backend.admission.limits import Limits, Share
from python_backend.admission.ration import Ration
from python_backend.admission.slots import Slots

_DEFAULT = Share()
#: A step that has not ended after so long is taken for one whose end we were not told of.
_LONGEST_STEP_S = 1.0
#: Weight of the newest answer in the mean length of all.
_NEWEST = 0.02


class Accounts:
    """The queue in front of the engine and the account of what is in it."""

    def __init__(self, limits: Limits, shares: Mapping[str, Share] | None = None) -> None:
        self.limits = limits
        self.slots = Slots(limits.slots)
        #: How many switches there may be; None: as many as the order asks for.
        self.ration: Ration | None = None
        #: Requests admitted so far.
        self.admissions = 0
        self.queued = 0
        #: Sequences in the engine; those in their last step apart from the others.
        self.in_engine = self.ending = 0
        #: Sequences that have entered since the last step ended, and since when.
        self._entered, self._entered_s = 0, 0.0
        #: Whether a step seems to have ended without our being told: nobody is held back then.
        self._deaf = False
        #: Mean length of an answer, tokens; None until one has ended.
        self._mean_output: float | None = None
        #: Whether somebody waits only for the next step.
        self.held = False
        self._shares = dict(shares or {})
        self._departments: dict[str, Department] = {}
        self._arrivals = 0
        self._next_plan = 0
        #: The counter of the last department whose queue became empty: where a newcomer begins.
        self._floor = 0.0

    @property
    def switches(self) -> int:
        """How often an adapter took another one's slot, as far as we know."""
        return self.slots.switches

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        """Takes over a changed policy; a department that it does not name has the default."""
        self._shares = dict(shares)
        for department in self._departments.values():
            department.share = self._shares.get(department.name, _DEFAULT)

    def department(self, name: str) -> Department:
        """The department's account."""
        found = self._departments.get(name)
        if found is None:
            found = Department(name, self._shares.get(name, _DEFAULT))
            self._departments[name] = found
        return found

    def departments(self) -> list[Department]:
        """Those that are known: here now, or not long gone."""
        return list(self._departments.values())

    def enqueue(self, request: Request, now_s: float) -> None:
        """A request begins to wait."""
        department = self.department(request.department)
        if not department.queued:
            there = [d.counter for d in self._departments.values() if d.queued]
            department.counter = max(department.counter, min(there) if there else self._floor)
        self._arrivals += 1
        request.arrival, request.waiting = self._arrivals, True
        request.seats = min(request.seats, self.limits.seats)
        weights = sum(d.share.weight for d in self._departments.values() if d.active)
        weight = department.share.weight
        others = max(1.0, (weights + (0 if department.active else weight)) / weight)
        request.turn = self.admissions + department.queued * others
        rounds = 1 + department.lines // self.limits.slots
        request.due = request.turn + self.limits.patience * rounds
        department.push(request)
        department.seen_s = now_s
        if request.adapter is not None:
            department.adapter_seen_s = now_s
        self.queued += 1

    def produced(self, request: Request, tokens: int) -> bool:
        """A running request has written ``tokens`` more, all sequences together.

        The engine begins its next step before we hear that the last one has ended somebody. So who
        has one token left gives up seat and slot now: a successor that is sent to the engine
        during that step is in the very next one, where it would miss it if it waited for the end.

        Returns:
            Whether that has made a seat free.
        """
        request.produced += tokens
        self._settle(request, at_least=request.charged)
        if not request.running or request.ending or not request.has_one_token_left:
            return False
        request.ending = True
        self.ending += request.seats
        self._departments[request.department].ending += request.seats
        self._vacate(request)
        return True

    def leave(self, request: Request, now_s: float) -> None:
        """A request ends, or goes away while it waits. Only the first call does anything."""
        if not (request.waiting or request.running):
            return
        department = self._departments[request.department]
        if request.waiting:
            self._next_plan = 0  # A slot may be being emptied for it.
            request.waiting = False
            self._dequeue(department, request)
        else:
            request.running = False
            # A whole answer tells what it wrote when it ends; given up before, its charge stands.
            if request.produced:
                self._settle(request)
                department.learn(request)
                each = request.produced / request.seats
                self._mean_output = moved(self._mean_output, each, _NEWEST)
            if request.ending:
                self.ending -= request.seats
                department.ending -= request.seats
            else:
                self._vacate(request)
        department.seen_s = now_s
        if not department.active:
            self._forget(now_s)

    def _vacate(self, request: Request) -> None:
        """Its seat and slot are somebody else's from now on."""
        department = self._departments[request.department]
        self.in_engine -= request.seats
        department.in_engine -= request.seats
        if request.adapter is not None and self.slots.leave(request.adapter, department.name):
            department.adapters_in_flight -= 1

    def stepped(self) -> bool:
        """A step of the engine has ended; whether somebody has been waiting for that."""
        held, self.held = self.held, False
        self._entered, self._deaf = 0, False
        return held

    def _pacing(self, now_s: float) -> bool:
        """Whether as many have entered as should with one step while a light one is about."""
        if not self.in_engine + self.ending:
            self._entered = 0  # Nobody is there whose step would end.
        if not self._entered or self._mean_output is None or self.limits.burst == math.inf:
            return False
        if now_s - self._entered_s > _LONGEST_STEP_S:
            self._deaf = True
        if self._deaf:
            return False
        steady = self.limits.seats / max(1.0, self._mean_output)
        full = self._entered >= max(1, int(self.limits.burst * steady))
        return full and self._light(now_s)

    def overdue(self, request: Request) -> bool:
        """Whether more have passed a waiting request than patience allows."""
        return self.admissions >= request.due

    def _switches(self, request: Request) -> bool:
        """Whether its adapter takes a slot that held another one.

        A ration begins when every slot has been used: one that is empty now has held another.
        """
        return request.adapter is not None and not self.slots.is_resident(request.adapter)

    def _settle(self, request: Request, at_least: float = 0.0) -> None:
        service = max(at_least, request.tokens + OUTPUT_COST * request.produced)
        if service != request.charged:
            self._departments[request.department].charge(service - request.charged)
            request.charged = service

    def _enter(self, request: Request, now_s: float) -> None:
        department = self._departments[request.department]
        request.waiting, request.running = False, True
        self._dequeue(department, request)
        department.admitted(now_s)
        self.admissions += 1
        request.expected = department.expected_output(request)
        request.charged = request.tokens + OUTPUT_COST * request.expected
        department.charge(request.charged)
        if not self._entered:
            self._entered_s = now_s
        self._entered += request.seats
        self.in_engine += request.seats
        department.in_engine += request.seats
        if request.adapter is None:
            return
        if self.ration is not None and self._switches(request):
            self.ration.take(now_s)
        if self.slots.enter(request.adapter, department.name, self.admissions):
            department.adapters_in_flight += 1

    def _dequeue(self, department: Department, request: Request) -> None:
        department.remove(request)
        self.queued -= 1
        if not department.queued:
            self._floor = max(self._floor, department.counter)

    def _fits(self, department: Department, request: Request) -> bool:
        reserve = 0 if department.in_engine else self.limits.reserve_seats
        return self.in_engine + request.seats <= self.limits.seats + reserve

    def _free_slots(self, department: Department, now_s: float) -> int:
        """Slots that the department may take now."""
        free = self.slots.free
        if free and department.in_engine and self._expected(now_s):
            free -= self.limits.kept_slots
        return free

    def _expected(self, now_s: float) -> bool:
        """Whether a department with nothing in the engine may come for a slot."""
        since = now_s - self.limits.memory_s
        return any(d.adapter_seen_s > since and not d.in_engine for d in self._departments.values())

    def _light(self, now_s: float) -> bool:
        """Whether a department with one request at most is here, or was lately."""
        since = now_s - self.limits.memory_s
        return any(
            d.in_engine + d.ending + d.queued <= 1 and d.seen_s > since
            for d in self._departments.values()
        )

    def _forget(self, now_s: float) -> None:
        since = now_s - self.limits.memory_s
        gone = [d.name for d in self._departments.values() if not d.active and d.seen_s <= since]
        for name in gone:
            del self._departments[name]
