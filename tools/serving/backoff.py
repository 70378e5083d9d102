"""How long to wait before the next start, and when to stop trying. Pure: time is an argument."""

from __future__ import annotations

FIRST_S = 1.0
LONGEST_S = 30.0
#: This many failures within ``WINDOW_S`` and nobody expects the next start to go better.
FAILURES = 5
WINDOW_S = 600.0


class Backoff:
    """Waits that double from failure to failure, until a server has run well for a while.

    Args:
        failures: give up at this many within ``WINDOW_S`` seconds.
    """

    def __init__(self, failures: int = FAILURES) -> None:
        self._limit = failures
        self._failures: list[float] = []

    def after_failure(self, now_s: float) -> float | None:
        """Seconds to wait before the next start; None to give up.

        Args:
            now_s: a monotonic clock, seconds.
        """
        self._failures = [at for at in self._failures if now_s - at < WINDOW_S]
        self._failures.append(now_s)
        if len(self._failures) >= self._limit:
            return None
        return float(min(FIRST_S * 2 ** (len(self._failures) - 1), LONGEST_S))
