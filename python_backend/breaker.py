"""A circuit breaker for one signal, or for one adapter under it. Pure: time is an argument.

A breaker is told values (``value``), one at a time, and moves between four states. A value *at* a
threshold has reached it; closing needs values strictly below ``close``:

- closed → warning at ``warning``, → open at ``open``, from whichever is below.
- → closed, from each of the others: when the closing condition has been met, values below
  ``close`` for ``hold_s`` seconds, or ``in_a_row`` times without one that was not.
- open → half-open: a ``hold_s`` breaker with the first value below ``close``; an ``in_a_row``
  breaker when somebody asks for a permit ``probe_after_s`` after it opened.
- half-open → open at ``open``.

Each way back has a threshold of its own, so no value at a border makes a breaker flap: a value
between ``close`` and ``open`` starts the closing condition anew and changes no state.

While it is open nothing passes. While it is half-open ``probes`` permits at a time do; each is a
lease that ends by itself after ``lease_s``, so that a probe that never comes back is no leak. The
state machine is not thread-safe: one event loop owns it. A clock that goes backwards counts as one
that stands still.
"""

from __future__ import annotations

import dataclasses
import enum
import math


class State(enum.IntEnum):
    """What the gauge shows."""

    CLOSED = 0
    WARNING = 1
    OPEN = 2
    HALF_OPEN = 3


@dataclasses.dataclass(frozen=True)
class Rule:
    """When a breaker changes its state. Exactly one of ``hold_s`` and ``in_a_row`` is above 0."""

    warning: float
    open: float
    close: float
    hold_s: float = 0.0
    in_a_row: int = 0
    probe_after_s: float = 5.0
    probes: int = 4
    lease_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.close <= self.warning <= self.open:
            raise ValueError("close, warning and open must ascend from 0")
        if (self.hold_s > 0) is (self.in_a_row > 0):
            raise ValueError("one of hold_s and in_a_row must be above 0")


@dataclasses.dataclass(frozen=True)
class Permit:
    """Leave to go on. ``lease`` is None where no lease was needed."""

    lease: int | None = None


class Breaker:
    """One breaker. ``transitions`` counts how often each state was entered."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.state = State.CLOSED
        self.transitions = dict.fromkeys(State, 0)
        self._now_s = -math.inf
        self._opened_s = -math.inf
        #: Since when all values have been below ``close``; how many have been, in a row.
        self._good_since_s: float | None = None
        self._good = 0
        self._leases: dict[int, float] = {}
        self._next_lease = 0

    def value(self, value: float, now_s: float) -> State:
        """Takes a new value of the signal; not a number tells nothing and is passed over."""
        now_s = self._at(now_s)
        if math.isnan(value):
            return self.state
        if value >= self.rule.open:
            self._bad()
            if self.state is State.OPEN:
                return self.state
            self._open(now_s)
        elif value >= self.rule.warning and self.state is State.CLOSED:
            self._bad()
            self._enter(State.WARNING)
        elif value >= self.rule.close:
            self._bad()
        else:
            self._below(now_s)
        return self.state

    def _below(self, now_s: float) -> None:
        self._good += 1
        if self._good_since_s is None:
            self._good_since_s = now_s
        if self.state is State.OPEN and self.rule.hold_s:
            self._enter(State.HALF_OPEN)
        met = (
            now_s - self._good_since_s >= self.rule.hold_s
            if self.rule.hold_s
            else self._good >= self.rule.in_a_row
        )
        if met and self.state is not State.CLOSED:
            self._enter(State.CLOSED)

    def row_broken(self) -> None:
        """Something happened that was not good, and is no value either: the count starts anew."""
        self._bad()

    def permit(self, now_s: float) -> Permit | None:
        """Leave to go on, or None. Each is to be given back with ``done``."""
        now_s = self._at(now_s)
        if self.state in (State.CLOSED, State.WARNING):
            return Permit()
        if self.state is State.OPEN:
            if self.rule.hold_s or now_s - self._opened_s < self.rule.probe_after_s:
                return None
            self._enter(State.HALF_OPEN)
        self._leases = {lease: end for lease, end in self._leases.items() if end > now_s}
        if len(self._leases) >= self.rule.probes:
            return None
        self._next_lease += 1
        self._leases[self._next_lease] = now_s + self.rule.lease_s
        return Permit(self._next_lease)

    def done(self, permit: Permit) -> None:
        """Gives a permit back; what came of it is told by ``value``, or not at all.

        A caller's own error, a cancel or a deadline is no value: it is neutral. A permit of an
        earlier time (before the breaker opened again, or was reset) is passed over.
        """
        if permit.lease is not None:
            self._leases.pop(permit.lease, None)

    def reset(self) -> None:
        """Closes it, whatever it is; permits that are out count no more."""
        self._bad()
        self._leases.clear()
        if self.state is not State.CLOSED:
            self._enter(State.CLOSED)

    def retry_after_s(self, now_s: float) -> float:
        """How long one who was refused should wait: until the next probe, at least a second."""
        now_s = self._at(now_s)
        if self.rule.hold_s:
            good_s = 0.0 if self._good_since_s is None else now_s - self._good_since_s
            return max(1.0, self.rule.hold_s - good_s)
        return max(1.0, self._opened_s + self.rule.probe_after_s - now_s)

    def _open(self, now_s: float) -> None:
        self._opened_s = now_s
        self._leases.clear()
        self._enter(State.OPEN)

    def _bad(self) -> None:
        self._good_since_s, self._good = None, 0

    def _enter(self, state: State) -> None:
        self.state = state
        self.transitions[state] += 1
        if state is State.CLOSED:
            self._leases.clear()

    def _at(self, now_s: float) -> float:
        self._now_s = max(self._now_s, now_s)
        return self._now_s
