"""Globs over lora_ids: whether two can mean one adapter, and what they are as regular expressions.

``fnmatch`` decides in the servers; here a glob is a list of what may stand at each place.
"""

from __future__ import annotations

import fnmatch
import re

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789_"
_ANY = frozenset(ALPHABET)
#: A place: the characters that may stand there; None for a run of any, of any length.
_Place = frozenset[str] | None
_PLACE = re.compile(r"\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


def _places(glob: str) -> list[_Place]:
    """Each place as ``fnmatch`` understands it, within the characters that names have."""
    found: list[_Place] = []
    for part in _PLACE.findall(glob):
        if part == "*":
            found.append(None)
        else:
            found.append(frozenset(c for c in ALPHABET if fnmatch.fnmatchcase(c, part)))
    return found


def overlap(one: str, other: str) -> bool:
    """Whether some text of the characters of a lora_id matches both globs."""
    left, right = _places(one), _places(other)
    seen: set[tuple[int, int]] = set()
    waiting = [(0, 0)]
    while waiting:
        at = i, j = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if i == len(left) and j == len(right):
            return True
        a = left[i] if i < len(left) else frozenset()
        b = right[j] if j < len(right) else frozenset()
        if a is None:
            waiting.append((i + 1, j))
        if b is None:
            waiting.append((i, j + 1))
        if (_ANY if a is None else a) & (_ANY if b is None else b) and (a, b) != (None, None):
            waiting.append((i if a is None else i + 1, j if b is None else j + 1))
    return False


def pattern(glob: str) -> str:
    """The glob as a regular expression without anchors, for PCRE."""
    return "".join("[a-z0-9_]*" if place is None else _class(place) for place in _places(glob))


def _class(place: frozenset[str]) -> str:
    if place == _ANY:
        return "[a-z0-9_]"
    if len(place) == 1:
        return next(iter(place))
    # A class that allows nothing matches nothing, as in fnmatch.
    return f"[{''.join(sorted(place))}]" if place else "(?!)"
