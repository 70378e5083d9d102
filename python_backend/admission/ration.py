"""How many adapters may take another one's slot while switching is rationed. Pure."""

from __future__ import annotations


class Ration:
    """Switches at an even rate: not more, and not less while somebody waits for one.

    One that was due and not taken is kept for as long as one takes to come due, and no longer: over
    t seconds there are at most ``rate`` · t + 2.

    Args:
        rate: per second, above 0.
    """

    def __init__(self, rate: float, now_s: float) -> None:
        #: May change while it lasts.
        self.rate = rate
        self._next_s = now_s

    @property
    def _each_s(self) -> float:
        return 1.0 / self.rate

    def due_s(self, now_s: float) -> float:
        """Seconds until the next switch may be; 0: now."""
        # A clock that went backwards must not keep everybody waiting until it is where it was.
        self._next_s = min(self._next_s, now_s + self._each_s)
        return max(0.0, self._next_s - now_s)

    def take(self, now_s: float) -> None:
        """One adapter has taken another one's slot."""
        self._next_s = max(self._next_s, now_s - self._each_s) + self._each_s
