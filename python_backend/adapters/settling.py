"""Which folders of the adapter root have changed and come to rest. Pure: time is an argument.

A folder that is still being written is left alone until nothing about it has changed for a while;
an event of the file system says when to look, never what to think.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

#: (name, size in bytes, mtime in ns, inode) of each file in a folder, sorted.
Fingerprint = tuple[tuple[str, int, int, int], ...]

#: What no folder looks like.
_NEVER: Fingerprint = (("", -2, 0, 0),)


@dataclasses.dataclass(frozen=True)
class Changes:
    """What an observation found.

    ``settled`` folders are new or changed and at rest, ``gone`` ones are no longer there, and
    ``unsettled`` says whether some folder is still moving.
    """

    settled: tuple[str, ...]
    gone: tuple[str, ...]
    unsettled: bool


class Settling:
    """Remembers what each folder looked like when it was last judged.

    Args:
        settle_s: how long a folder must stay the same before it counts as written, seconds.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._judged: dict[str, Fingerprint] = {}
        self._moving: dict[str, tuple[Fingerprint, float]] = {}

    def judged(self, name: str, fingerprint: Fingerprint) -> None:
        """Records that ``name`` has been judged as it then looked."""
        self._judged[name] = fingerprint

    @property
    def known(self) -> int:
        """How many folders have been judged and are still thought to be there."""
        return len(self._judged)

    def again(self, name: str) -> None:
        """Forgets the judgement of ``name``: what stood in its way may pass (a full disk)."""
        # Still known, so that its going is noticed, but never as it looks now.
        self._judged[name] = _NEVER

    def observe(self, seen: Mapping[str, Fingerprint], now_s: float) -> Changes:
        """Compares what is there with what was judged; ``now_s`` is a monotonic clock, seconds."""
        settled = []
        for name, fingerprint in seen.items():
            if self._judged.get(name) == fingerprint:
                self._moving.pop(name, None)
                continue
            before = self._moving.get(name)
            if before is None or before[0] != fingerprint:
                self._moving[name] = (fingerprint, now_s)
            elif now_s - before[1] >= self._settle_s:
                settled.append(name)
                del self._moving[name]
        for name in self._moving.keys() - seen.keys():
            del self._moving[name]
        gone = tuple(sorted(self._judged.keys() - seen.keys()))
        for name in gone:
            del self._judged[name]
        return Changes(tuple(sorted(settled)), gone, bool(self._moving))
