"""Admission as the service uses it: a place for each request, and a wait until its turn.

Lives on one event loop. The scheduler decides, this wakes whoever may go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from python_backend.admission.bounds import Bounds
from python_backend.admission.department import Request
from python_backend.admission.limits import Limits, Share
from python_backend.admission.ration import Ration
from python_backend.admission.scheduler import Scheduler
from python_backend.errors import BreakerOpen, Overloaded

#: What those are told who find no place and whose wait nobody can estimate, seconds.
_RETRY_S = 1.0
#: How much faster than now things would have to go for a refused request to have made it.
_OPTIMISM = 2.0


class Place:
    """One request's place in front of the engine, then in it. Given back by ``Admission.place``."""

    def __init__(self, admission: Admission, department: str, seats: int) -> None:
        self._admission, self.department, self.seats = admission, department, seats
        self.request: Request | None = None
        #: Prompt tokens counted as pending, and tokens taken off the department's minute.
        self.counted = self.spent = 0

    async def enter(
        self, adapter: int | None, tokens: int, max_tokens: int, left_s: float | None = None
    ) -> None:
        """Returns when the request may go to the engine.

        Args:
            adapter: the engine's id of its adapter; None for base.
            tokens: of its prompt.
            max_tokens: the most that each of its sequences can write.
            left_s: until its deadline, seconds.

        Raises:
            Overloaded: a bound is reached, or its turn would come far behind its deadline.
            InvalidArgument: its department never has so many tokens.
        """
        await self._admission.enter(self, adapter, tokens, max_tokens, left_s)

    def produced(self, tokens: int) -> None:
        """The request has written ``tokens`` more, all sequences together."""
        if self.request is not None:
            self._admission.produced(self.request, tokens)


class Admission:
    """Owns scheduler and bounds.

    Args:
        clock: monotonic, seconds.
    """

    def __init__(
        self,
        limits: Limits,
        shares: Mapping[str, Share] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = Scheduler(limits, shares)
        self.bounds = Bounds(limits, shares)
        self._clock = clock
        #: Called when what is pending or in the engine has changed.
        self.on_change: Callable[[], None] = lambda: None
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._pumping = False
        self._ration_timer: asyncio.TimerHandle | None = None
        #: Requests whose turn, by the ration of switches, would come behind their deadline.
        self.ration_refusals = 0

    def ration_switches(self, rate: float | None) -> None:
        """Rations the times an adapter takes another one's slot; on the loop.

        Args:
            rate: per second, above 0; None: not any more.
        """
        scheduler = self.scheduler
        if rate == (scheduler.ration.rate if scheduler.ration else None):
            return
        if rate is None:
            scheduler.ration = None
        elif scheduler.ration is None:
            scheduler.ration = Ration(rate, self._clock())
        else:
            # A new one would have a switch due at once.
            scheduler.ration.rate = rate
        if scheduler.queued:
            self._pump_soon()

    @property
    def under_way(self) -> dict[str, int]:
        """Sequences that wait or run, by department; empty when nothing does."""
        return dict(self.bounds.pending)

    @property
    def total(self) -> int:
        """Sequences that wait or run."""
        return self.bounds.total

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        """Takes over a changed policy; on the loop."""
        self.scheduler.set_shares(shares)
        self.bounds.set_shares(shares)
        self._pump_soon()

    @contextmanager
    def place(self, department: str, seats: int = 1) -> Iterator[Place]:
        """A place for as long as the block runs; whatever was taken in it is given back.

        Raises:
            Overloaded: all places are taken.
        """
        wait_s = self.scheduler.department(department).expected_wait_s()
        self.bounds.enter(department, seats, _whole(wait_s))
        place = Place(self, department, seats)
        try:
            self.on_change()
            yield place
        finally:
            self.bounds.leave(department, seats)
            self._give_back(place)
            self.on_change()

    async def enter(
        self, place: Place, adapter: int | None, tokens: int, max_tokens: int, left_s: float | None
    ) -> None:
        """See ``Place.enter``."""
        name, seats, now_s = place.department, place.seats, self._clock()
        wait_s = self.scheduler.department(name).expected_wait_s()
        if left_s is not None and wait_s is not None and wait_s > left_s * _OPTIMISM:
            raise Overloaded(
                "your department's queue is longer than your deadline.", retry_after=_whole(wait_s)
            )
        self._check_ration(adapter, left_s)
        self.bounds.add_tokens(tokens, _whole(wait_s))
        place.counted = tokens
        most = tokens + seats * max_tokens
        if self.bounds.spend(name, most, now_s):
            place.spent = most
        request = place.request = Request(name, adapter, seats, tokens, max_tokens)
        turn = asyncio.get_running_loop().create_future()
        self._turns[id(request)] = turn
        self.scheduler.enqueue(request, now_s)
        self._pump()
        # Cancelled here, it leaves through the place, whether or not its turn has come.
        await turn

    def produced(self, request: Request, tokens: int) -> None:
        """See ``Place.produced``."""
        if self.scheduler.produced(request, tokens) and self.scheduler.queued:
            self._pump_soon()

    def stepped(self) -> None:
        """The engine has ended a step; on the loop."""
        if self.scheduler.stepped():
            self._pump_soon()

    def _check_ration(self, adapter: int | None, left_s: float | None) -> None:
        ration, slots = self.scheduler.ration, self.scheduler.slots
        if ration is None or left_s is None or adapter is None:
            return
        if slots.is_resident(adapter):
            return
        wait_s = self.scheduler.switches_before(adapter) / ration.rate
        if wait_s > left_s:
            self.ration_refusals += 1
            raise BreakerOpen("switch_rate is over its threshold.", retry_after=_whole(wait_s))

    def _give_back(self, place: Place) -> None:
        self.bounds.remove_tokens(place.counted)
        request = place.request
        if request is None:
            return
        self._turns.pop(id(request), None)
        self.scheduler.leave(request, self._clock())
        if place.spent:
            self.bounds.refund(place.department, place.spent - request.used)
        self._pump_soon()

    def _pump(self) -> None:
        """Wakes everybody whose turn has come."""
        self._pumping = False
        now_s = self._clock()
        while (request := self.scheduler.admit(now_s)) is not None:
            turn = self._turns.pop(id(request))
            # One that was cancelled in this very turn of the loop gives its seat back itself.
            if not turn.done():
                turn.set_result(None)
        self._pump_when_due(now_s)
        self.on_change()

    def _pump_when_due(self, now_s: float) -> None:
        """Once more when the ration lets somebody in: nothing else may happen until then."""
        due_s = self.scheduler.ration_due_s(now_s)
        if self._ration_timer is not None:
            self._ration_timer.cancel()
            self._ration_timer = None
        if due_s is not None:
            self._ration_timer = asyncio.get_running_loop().call_later(due_s, self._pump)

    def _pump_soon(self) -> None:
        """Once all that ended with the same step have gone: their slots are then free together."""
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)


def _whole(seconds: float | None) -> float:
    return _RETRY_S if seconds is None else float(max(1, round(seconds)))
