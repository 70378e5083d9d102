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

While switches are rationed, an adapter takes another one's slot only when the ration has one due:
what needs no switch goes on, and of the others the oldest overdue still comes first.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from python_backend.admission.accounts import Accounts
from python_backend.admission.department import Department, Request

_held_then_age = operator.itemgetter(0, 1)


class Scheduler(Accounts):
    """Chooses who enters the engine next."""

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
        paced = self._pacing(now_s)
        if paced:
            self.held = True
            waiting = [d for d in waiting if not d.in_engine]
        request = self._by_age(waiting, now_s)
        if request is None:
            if not paced:
                self._have_emptied(waiting, now_s)
            request = self._by_turn(waiting, now_s)
        if request is not None:
            self._enter(request, now_s)
        return request

    def next_adapters(self, count: int) -> list[int]:
        """Adapters without a slot that will be given one next: worth preparing."""
        heads = sorted(self._heads_that_switch(), key=lambda head: head.turn)
        return list(dict.fromkeys(head.adapter for head in heads if head.adapter is not None))[
            :count
        ]

    def switches_before(self, adapter: int) -> int:
        """Adapters without a slot that wait already, other than this one."""
        return len({head.adapter for head in self._heads_that_switch()} - {adapter})

    def _heads_that_switch(self) -> Iterator[Request]:
        """The oldest waiting request of each line whose adapter has no slot."""
        for department in self._departments.values():
            for head in department.by_age():
                if self._switches(head):
                    yield head

    def ration_due_s(self, now_s: float) -> float | None:
        """Seconds until somebody who waits may switch; None where no ration keeps anybody."""
        if self.ration is None or not self.queued:
            return None
        return self.ration.due_s(now_s) or None

    def _may_enter(self, request: Request, now_s: float) -> bool:
        """Whether the ration lets it in: it needs no switch, or one is due."""
        rationed = self.ration is not None and self.ration.due_s(now_s) > 0
        return not (rationed and self._switches(request))

    def _overdue(self, department: Department, count: int, now_s: float) -> list[Request]:
        """Its oldest overdue requests that need a slot, one for each adapter."""
        found: list[Request] = []
        for head in department.by_age():
            if not self.overdue(head) or not department.has_concurrency(head.seats):
                break
            if (
                head.adapter is not None
                and not self.slots.is_in_flight(head.adapter)
                and self._may_enter(head, now_s)
            ):
                found.append(head)
                if len(found) == count:
                    break
        return found

    def _by_age(self, waiting: list[Department], now_s: float) -> Request | None:
        """The overdue request that a free slot goes to."""
        if not self.slots.free:
            return None
        first = [
            (department.slots_for_weight, head.arrival, head)
            for department in waiting
            for head in self._overdue(department, 1, now_s)
            if self._fits(department, head) and self._free_slots(department, now_s) > 0
        ]
        if not first:
            return None
        # It may not take the slot that was emptied for it: what is to be emptied is then planned
        # anew, or waiters for that adapter would wait for nothing.
        self._next_plan = 0
        return self._older(waiting, min(first, key=_held_then_age)[2])

    def _have_emptied(self, waiting: list[Department], now_s: float) -> None:
        """Plans slots for the overdue.

        Not each time: with many adapters waiting it would cost more than all the rest.
        """
        if self.admissions >= self._next_plan:
            self._next_plan = self.admissions + 1 + self.limits.seats // 4
            self._plan_emptying(waiting, now_s)

    def _older(self, waiting: list[Department], chosen: Request) -> Request:
        """``chosen``, or an overdue request that needs no slot and has the better claim.

        Better is older, of a department that has had no more. Without this, requests for base
        starve where those that need a slot are overdue at once (``patience`` of 0).
        """
        most = self._departments[chosen.department].counter
        in_flight = [a for a in self.slots.resident() if self.slots.is_in_flight(a)]
        for department in waiting:
            if department.counter > most:
                continue
            for adapter in (None, *in_flight):
                head = department.head(adapter)
                if (
                    head is not None
                    and head.arrival < chosen.arrival
                    and adapter not in self.slots.emptying
                    and self.overdue(head)
                    and department.has_concurrency(head.seats)
                    and self._fits(department, head)
                ):
                    chosen = head
        return chosen

    def _plan_emptying(self, waiting: list[Department], now_s: float) -> None:
        """Has as many slots emptied as overdue requests wait for one, as far as they may."""
        emptying = self.slots.emptying
        lacking = self.slots.count - self.slots.free - len(emptying)
        most = max(d.slots_for_weight for d in self._departments.values())
        overdue: list[tuple[float, int, Department]] = []
        for department in waiting:
            held = department.slots_for_weight
            # Slots of others are emptied for those who hold less than they.
            room = lacking if held < most else min(lacking, department.adapters_in_flight)
            for head in self._overdue(department, max(1, room), now_s):
                overdue.append((held, head.arrival, department))
        if len(emptying) > len(overdue):
            emptying.clear()
        overdue.sort(key=_held_then_age)
        unable: set[Department] = set()
        for wanted, (_, _, department) in enumerate(overdue, start=1):
            enough = self._free_slots(department, now_s) + len(emptying) >= wanted
            if not enough and department not in unable and not self._empty_one_for(department):
                unable.add(department)

    def _empty_one_for(self, department: Department) -> bool:
        """Chooses a slot of the department's own, or of departments that hold more for theirs."""
        held = department.slots_for_weight
        for adapter in self.slots.could_empty():
            users = [self._departments[name] for name in self.slots.users(adapter)]
            if department in users or all(d.slots_for_weight > held for d in users):
                self.slots.emptying.add(adapter)
                return True
        return False

    def _by_turn(self, waiting: list[Department], now_s: float) -> Request | None:
        slots = self.slots
        there = [adapter for adapter in slots.resident() if adapter not in slots.emptying]
        in_flight = [adapter for adapter in there if slots.is_in_flight(adapter)]
        for department in waiting:
            may_take = self._free_slots(department, now_s) > 0
            request = self._of(department, there if may_take else in_flight, may_take, now_s)
            if request is None or not department.has_concurrency(request.seats):
                continue
            if self._fits(department, request):
                return request
            if request.seats > 1 and self.overdue(request):
                return None  # They are saved up for it; one seat alone is only waited for.
        return None

    def _of(
        self, department: Department, usable: list[int], may_take: bool, now_s: float
    ) -> Request | None:
        """The department's request whose turn it is among those that can enter.

        Args:
            usable: adapters in slots that may get more requests.
            may_take: whether there is a slot for one that has none.
        """
        slots = self.slots
        best = department.head(None)
        for adapter in usable:
            head = department.head(adapter)
            if head is not None and (best is None or head.arrival < best.arrival):
                best = head
        if not may_take:
            return best
        for head in department.by_age():
            if best is not None and best.arrival < head.arrival:
                break
            if head.adapter is None or slots.is_resident(head.adapter):
                continue
            if not self._may_enter(head, now_s):
                break
            # It puts out another adapter: those that would not may pass it until it is late.
            late = self.admissions >= head.turn + self.limits.affinity
            if best is None or slots.untouched or late:
                return head
            break
        return best
