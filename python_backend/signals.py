"""What the breakers watch. Pure: values and time go in, the signal's value comes out.

- switch rate: times that a slot got another adapter than the one it had held, per second, sliding
  10 s; from the worker's counter.
- fragmentation, a share of each pool: 1 − allocated / reserved of the device's allocator, one
  sample of the worker every 5 s; of the shm tier what its files leave unused of their last pages,
  of its budget (files lie in pages of memory: no run of free bytes could be broken up).
- load latency: median time to read an adapter into the host's memory, seconds, of the last 10
  loads; from the worker's list of loads.
- routing errors: answers computed with other weights than those asked for, as a share of the last
  1,000 answers whose weights are known; from the digests of what lies in the worker's slots.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from python_backend.breaker import Breaker, State

SWITCH_WINDOW_S = 10.0
LOADS = 10
MIB = 1 << 20
ANSWERS, ENOUGH_ANSWERS = 1000, 100


class SwitchRate:
    """Evictions per second over the last ``SWITCH_WINDOW_S``, from a counter's readings."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def read(self, count: int, now_s: float) -> float:
        """The rate after a new reading of the counter.

        A counter that has fallen (the engine is another one) begins anew; a clock that has gone
        backwards stands still.
        """
        if self._readings:
            last_s, last = self._readings[-1]
            now_s = max(now_s, last_s)
            if count < last:
                self._readings.clear()
        self._readings.append((now_s, count))
        # The newest reading from before the window is where the window begins.
        while len(self._readings) > 1 and self._readings[1][0] <= now_s - SWITCH_WINDOW_S:
            self._readings.popleft()
        return (count - self._readings[0][1]) / SWITCH_WINDOW_S


class LoadLatency:
    """The median of the last ``LOADS`` loads; the breaker hears of it once there are as many.

    Args:
        per_mib: the breaker hears of seconds per MiB; loads of no known size are passed over.
    """

    def __init__(self, breaker: Breaker, *, per_mib: bool = False) -> None:
        self._breaker, self._governs_per_mib = breaker, per_mib
        self._loads: deque[float] = deque(maxlen=LOADS)
        self._per_mib: deque[float] = deque(maxlen=LOADS)
        #: What governs, with the adapter's id.
        self._values: deque[tuple[int, float]] = deque(maxlen=LOADS)

    @property
    def culprit(self) -> int | None:
        """The adapter whose loads alone are not good, by its id; None where several have such."""
        close = self._breaker.rule.close
        slow = {int_id for int_id, value in self._values if value >= close}
        return slow.pop() if len(slow) == 1 and 0 not in slow else None

    @property
    def median_s_per_mib(self) -> float:
        """Of the loads whose size is known, seconds per MiB of weights; 0 before the first."""
        return statistics.median(self._per_mib) if self._per_mib else 0.0

    @property
    def median_s(self) -> float:
        """Of the loads there were; 0 before the first."""
        return statistics.median(self._loads) if self._loads else 0.0

    def clear(self) -> None:
        """Forgets the loads there were."""
        self._loads.clear()
        self._per_mib.clear()
        self._values.clear()

    def loaded(self, seconds: float, now_s: float, size: int = 0, int_id: int = 0) -> None:
        """One more load, of ``size`` bytes (0: not known). What is no time tells nothing."""
        if not (math.isfinite(seconds) and seconds >= 0):
            return
        self._loads.append(seconds)
        value = seconds
        if size > 0:
            self._per_mib.append(seconds * MIB / size)
        if self._governs_per_mib:
            if size <= 0:
                return
            value = self._per_mib[-1]
        self._values.append((int_id, value))
        if value < self._breaker.rule.close:
            self._breaker.value(value, now_s)
            return
        self._breaker.row_broken()
        median = statistics.median(value for _, value in self._values)
        if len(self._values) == LOADS and median >= self._breaker.rule.warning:
            self._breaker.value(median, now_s)


class RouteErrors:
    """The share of wrong answers among the last ``ANSWERS``.

    Args:
        breaker: hears of it from ``ENOUGH_ANSWERS`` answers on; None where the share is only shown.
    """

    def __init__(self, breaker: Breaker | None = None) -> None:
        self._breaker = breaker
        self._wrong: deque[bool] = deque(maxlen=ANSWERS)
        self._count = 0

    @property
    def ratio(self) -> float:
        """0 where there was no answer."""
        return self._count / len(self._wrong) if self._wrong else 0.0

    def clear(self) -> None:
        """Forgets the answers there were."""
        self._wrong.clear()
        self._count = 0

    def answered(self, *, wrong: bool, now_s: float) -> None:
        """One more answer whose weights are known."""
        if len(self._wrong) == ANSWERS:
            self._count -= self._wrong[0]
        self._wrong.append(wrong)
        self._count += wrong
        breaker = self._breaker
        if breaker is None:
            return
        if not wrong:
            if breaker.state is not State.CLOSED and breaker.value(0.0, now_s) is State.CLOSED:
                # What it was opened for is over: it must not open again for the same answers.
                self.clear()
            return
        breaker.row_broken()
        if breaker.state is State.HALF_OPEN:
            breaker.value(math.inf, now_s)
        elif len(self._wrong) >= ENOUGH_ANSWERS and self.ratio >= breaker.rule.warning:
            breaker.value(self.ratio, now_s)


def fragmentation(allocated: float, reserved: float) -> float:
    """1 − allocated / reserved, within 0 and 1; not a number where that has no meaning."""
    if not (math.isfinite(allocated) and math.isfinite(reserved)) or reserved <= 0:
        return math.nan
    # In this order a share at a threshold is not a rounding below it.
    return min(1.0, max(0.0, (reserved - allocated) / reserved))
