"""One department at the engine's door: what it has had, what of it waits, what of it runs."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections import deque
from collections.abc import Iterator

from python_backend.admission.limits import Share

#: Cost of a token written, where a token read costs 1 (the virtual token counter's weights).
OUTPUT_COST = 2.0
#: Weight of the newest request in the mean length of a department's answers.
_NEWEST = 0.1
#: Admissions from which a rate is taken.
_RATE_OVER = 32


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """A request that waits or runs.

    ``adapter`` is the engine's id of its adapter, None for base; ``max_tokens`` the most that each
    of its ``seats`` sequences can write. What follows is the scheduler's.
    """

    department: str
    adapter: int | None
    seats: int
    tokens: int
    max_tokens: int
    #: Its place in the order of arrival.
    arrival: int = 0
    #: Number of admissions behind which its turn has come by its department's share.
    turn: float = 0.0
    #: Number of admissions behind which it is overdue.
    due: float = 0.0
    waiting: bool = False
    running: bool = False
    #: Whether it is in its last step: its seat and slot are given to others already.
    ending: bool = False
    produced: int = 0
    #: What it was expected to write when it entered.
    expected: float = 0.0
    #: Service that its department has been charged for it, tokens before weighting.
    charged: float = 0.0

    @property
    def has_one_token_left(self) -> bool:
        """Whether its next token is its last for certain.

        Of several sequences nobody counts here how far each has come.
        """
        return self.seats == 1 and self.produced == self.max_tokens - 1

    @property
    def used(self) -> int:
        """Tokens read and written, once it has ended.

        Of an answer that was given up before its only step nobody knows how much was written: what
        was expected counts. One that never entered has used none.
        """
        if not self.charged:
            return 0
        return self.tokens + (self.produced or math.ceil(self.expected))


def moved(mean: float | None, newest: float, weight: float) -> float:
    """An exponentially weighted mean with one value more; None is one of nothing yet."""
    return newest if mean is None else mean + weight * (newest - mean)


class Department:
    """Counters and queue of one department.

    The queue is one line per adapter, each first come first served, and a list of the lines' oldest
    requests, sorted by age: with thousands of lines still moved about in a microsecond.
    """

    def __init__(self, name: str, share: Share) -> None:
        self.name, self.share = name, share
        #: Service had, over weight: the virtual token counter.
        self.counter = 0.0
        #: Sequences; those in the engine's last step for them apart from its others.
        self.queued = self.in_engine = self.ending = 0
        self.adapters_in_flight = 0
        #: Of these, slots that are of no use to it yet: their request waits for more.
        self.gathering = 0
        #: When it last had anything to do with us, and with an adapter, seconds.
        self.seen_s = self.adapter_seen_s = float("-inf")
        self._mean_output: float | None = None
        self._admitted_s: deque[float] = deque(maxlen=_RATE_OVER)
        self._lines: dict[int | None, deque[Request]] = {}
        self._heads: list[tuple[int, Request]] = []

    @property
    def active(self) -> bool:
        """Whether anything of it waits or runs."""
        return bool(self.queued or self.in_engine or self.ending)

    @property
    def slots_for_weight(self) -> float:
        """Slots that it holds and has the use of, over its weight.

        Those of a request that still gathers do not count: held against it, they would keep it
        from ever getting the rest while others come back for theirs.
        """
        return max(0, self.adapters_in_flight - self.gathering) / self.share.weight

    def has_concurrency(self, seats: int) -> bool:
        """Whether its own bound lets ``seats`` more into the engine; one request always fits."""
        bound = self.share.concurrency
        there = self.in_engine + self.ending
        return bound is None or not there or there + seats <= bound

    def charge(self, service: float) -> None:
        """Counts service had, in tokens; negative gives back what was charged too early."""
        self.counter += service / self.share.weight

    def expected_output(self, request: Request) -> float:
        """Tokens that the request will probably write, all sequences together."""
        mean = self._mean_output
        each = request.max_tokens if mean is None else min(mean, request.max_tokens)
        return request.seats * each

    def learn(self, request: Request) -> None:
        """Takes note of how long an answer became."""
        each = request.produced / request.seats
        self._mean_output = moved(self._mean_output, each, _NEWEST)

    def push(self, request: Request) -> None:
        """Puts a request at the end of its line."""
        line = self._lines.setdefault(request.adapter, deque())
        line.append(request)
        self.queued += 1
        if len(line) == 1:
            bisect.insort(self._heads, (request.arrival, request))

    def remove(self, request: Request) -> None:
        """Takes a request, admitted or gone, out of its line; ``waiting`` is False already."""
        self.queued -= 1
        line = self._lines[request.adapter]
        if line[0] is not request:
            return  # Not waiting any more: dropped when the line has moved up to it.
        del self._heads[bisect.bisect_left(self._heads, (request.arrival,))]
        while line and not line[0].waiting:
            line.popleft()
        if line:
            bisect.insort(self._heads, (line[0].arrival, line[0]))
        else:
            del self._lines[request.adapter]
        if not self.queued:
            self._admitted_s.clear()

    @property
    def lines(self) -> int:
        """How many adapters, base among them, have requests waiting."""
        return len(self._lines)

    def head(self, adapter: int | None) -> Request | None:
        """The oldest request for an adapter."""
        line = self._lines.get(adapter)
        return line[0] if line else None

    def by_age(self) -> Iterator[Request]:
        """The oldest request of each line, oldest line first. Nothing may change meanwhile."""
        for _, head in self._heads:
            yield head

    def admitted(self, now_s: float) -> None:
        """Takes note of the time of an admission."""
        self._admitted_s.append(now_s)

    def expected_wait_s(self) -> float | None:
        """How long a new request would wait at the pace of the last admissions, if that is known.

        Only a department that has had a queue all the while has a pace.
        """
        times = self._admitted_s
        if len(times) < _RATE_OVER or not self.queued:
            return None
        return (times[-1] - times[0]) / (len(times) - 1) * self.queued
