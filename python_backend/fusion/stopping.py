"""Stop strings in a text that comes in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Lets text through up to the first stop string.

    What may be the beginning of one is held back until it is clear.

    Args:
        strings: none of them empty.
        include: whether the stop string itself is let through.
    """

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        self._strings, self._include = strings, include
        self._held = ""
        #: Whether a stop string has come; nothing is let through after it.
        self.stopped = False

    def feed(self, text: str) -> str:
        """What can be let through now that ``text`` has come."""
        if self.stopped:
            return ""
        self._held += text
        found = [(at, s) for s in self._strings if (at := self._held.find(s)) >= 0]
        if found:
            # The one that ends first has stopped it; of two that end there the longer.
            at, stop = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
            self.stopped = True
            return self._held[: at + len(stop) if self._include else at]
        keep = max((self._overlap(s) for s in self._strings), default=0)
        out, self._held = self._split(keep)
        return out

    def rest(self) -> str:
        """What was held back, now that no more text comes."""
        out, self._held = self._held, ""
        return "" if self.stopped else out

    def _overlap(self, stop: str) -> int:
        """How much of the end of what is held could be the beginning of ``stop``."""
        most = min(len(stop) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(stop[:n])), 0)

    def _split(self, keep: int) -> tuple[str, str]:
        at = len(self._held) - keep
        return self._held[:at], self._held[at:]
