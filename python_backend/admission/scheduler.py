"""Who enters the engine next. Pure: time and state are arguments; no clock, no I/O.

Between departments: weighted fair queueing by virtual token counters (Sheng et al., "Fairness in
Serving Large Language Models"): service is input + 2·output tokens over weight, and the department
that has had least comes first. A request is charged for its input and for what it will probably
write when it enters, for more as it writes more, and the charge is set right when it ends. A
department that begins to wait is lifted to the least counter of those that wait: what it did not
ask for earns it no credit.

Within a department: first come, first served, except that a request whose adapter has a slot may
pass one that would need a switch and is not late yet (``affinity``). At most ``slots`` adapters are
in flight, so vLLM's scheduler never skips a request.

Nobody starves. A request's turn comes when as many have been admitted as stood before it by its
department's share. It is overdue ``patience`` admissions later, and ``patience`` more for each
round of slots that its department's other adapters fill before it. The oldest overdue request of
an adapter without a slot gets the next slot that becomes free, departments that hold fewer slots
for their weight first, and if none is free a slot is emptied: its adapter gets no new requests
until its last one ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from python_backend.admission.department import OUTPUT_COST, Department, Request
from python_backend.admission.limits import Limits, Share
from python_backend.admission.slots import Slots

_DEFAULT = Share()


class Scheduler:
    """The queue in front of the engine and the account of what is in it."""

    def __init__(self, limits: Limits, shares: Mapping[str, Share] | None = None) -> None:
        self.limits = limits
        self.slots = Slots(limits.slots)
        #: Requests admitted so far.
        self.admissions = 0
        self.queued = self.in_engine = 0
        self._shares = dict(shares or {})
        self._departments: dict[str, Department] = {}
        self._arrivals = 0
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

    def admit(self, now_s: float) -> Request | None:
        """The request that enters now, or None; to be asked until there is none.

        The caller has ``leave`` called for it when it has ended, however it ends.
        """
        if not self.queued:
            return None
        waiting = [d for d in self._departments.values() if d.queued]
        if self.in_engine >= self.limits.seats and all(d.in_engine for d in waiting):
            return None
        waiting.sort(key=lambda d: (d.counter, d.in_engine))
        request = self._by_age(waiting, now_s) or self._by_turn(waiting, now_s)
        if request is not None:
            self._enter(request, now_s)
        return request

    def produced(self, request: Request, tokens: int) -> None:
        """A running request has written ``tokens`` more, all sequences together."""
        request.produced += tokens
        self._settle(request, at_least=request.charged)

    def leave(self, request: Request, now_s: float) -> None:
        """A request ends, or goes away while it waits. Only the first call does anything."""
        if not (request.waiting or request.running):
            return
        department = self._departments[request.department]
        if request.waiting:
            request.waiting = False
            self._dequeue(department, request)
        else:
            request.running = False
            # A whole answer tells what it wrote when it ends; given up before, its charge stands.
            if request.produced:
                self._settle(request)
                department.learn(request)
            self.in_engine -= request.seats
            department.in_engine -= request.seats
            department.running[request.adapter] -= 1
            if request.adapter is not None and self.slots.leave(request.adapter, department.name):
                department.adapters_in_flight -= 1
        department.seen_s = now_s
        if not department.active:
            self._forget(now_s)

    def overdue(self, request: Request) -> bool:
        """Whether more have passed a waiting request than patience allows."""
        return self.admissions >= request.due

    def next_adapters(self, count: int) -> list[int]:
        """Adapters without a slot that will be given one next: worth preparing."""
        heads = [head for d in self._departments.values() if d.queued for head in d.by_age()]
        heads.sort(key=lambda head: head.turn)
        wanted = dict.fromkeys(
            head.adapter
            for head in heads
            if head.adapter is not None and not self.slots.is_resident(head.adapter)
        )
        return list(wanted)[:count]

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
        self.in_engine += request.seats
        department.in_engine += request.seats
        department.running[request.adapter] += 1
        if request.adapter is not None and self.slots.enter(
            request.adapter, department.name, self.admissions
        ):
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
        return any(d.adapter_seen_s > since and not d.in_engine for d in self.departments())

    def _by_age(self, waiting: list[Department], now_s: float) -> Request | None:
        """The overdue request that a free slot goes to; else has slots emptied for them."""
        overdue: list[tuple[float, int, Request, Department]] = []
        for department in waiting:
            held = department.adapters_in_flight / department.share.weight
            room = self.limits.slots
            for head in department.by_age():
                if not self.overdue(head) or not room:
                    break
                if not department.has_concurrency(head.seats):
                    break
                if head.adapter is not None and not self.slots.is_in_flight(head.adapter):
                    overdue.append((held, head.arrival, head, department))
                    room -= 1
        overdue.sort(key=lambda entry: entry[:2])
        emptying = self.slots.emptying
        if len(emptying) > len(overdue):
            emptying.clear()
        for wanted, (_, _, head, department) in enumerate(overdue, start=1):
            free = self._free_slots(department, now_s)
            if free > 0 and self._fits(department, head):
                return head
            if free + len(emptying) < wanted:
                self._empty_one_for(department)
        return None

    def _empty_one_for(self, department: Department) -> None:
        """Chooses a slot of the department's own, or of departments that hold more for theirs."""
        held = department.adapters_in_flight / department.share.weight
        for adapter in self.slots.could_empty():
            users = [self._departments[name] for name in self.slots.users(adapter)]
            if department in users or all(
                d.adapters_in_flight / d.share.weight > held for d in users
            ):
                self.slots.emptying.add(adapter)
                return

    def _by_turn(self, waiting: list[Department], now_s: float) -> Request | None:
        for department in waiting:
            request = self._of(department, now_s)
            if request is None or not department.has_concurrency(request.seats):
                continue
            if self._fits(department, request):
                return request
            if self.overdue(request):
                return None  # Several seats at once: they are saved up for it.
        return None

    def _of(self, department: Department, now_s: float) -> Request | None:
        """The department's request whose turn it is among those that can enter."""
        slots = self.slots
        may_take = self._free_slots(department, now_s) > 0
        best = department.head(None)
        for adapter in slots.resident():
            head = department.head(adapter)
            if head is None or adapter in slots.emptying:
                continue
            if (slots.is_in_flight(adapter) or may_take) and (
                best is None or head.arrival < best.arrival
            ):
                best = head
        if not may_take:
            return best
        for head in department.by_age():
            if best is not None and best.arrival < head.arrival:
                break
            if head.adapter is None or slots.is_resident(head.adapter):
                continue
            # It puts out another adapter: those that would not may pass it until it is late.
            late = self.admissions >= head.turn + self.limits.affinity
            if best is None or slots.untouched or late:
                return head
            break
        return best

    def _forget(self, now_s: float) -> None:
        since = now_s - self.limits.memory_s
        gone = [d.name for d in self._departments.values() if not d.active and d.seen_s <= since]
        for name in gone:
            del self._departments[name]
