"""What a check has found."""

from __future__ import annotations

import dataclasses
import enum


class Result(enum.StrEnum):
    """How bad it is, from good to bad."""

    OK = "ok"
    #: It serves, and could do so better.
    ADVICE = "advice"
    #: It serves, and somebody will be hurt sooner or later.
    WARNING = "warning"
    #: It does not start. What only leaves one adapter or caller out is a warning: one bad folder in
    #: a shared root must not keep every server of a fleet from starting again.
    FAILURE = "failure"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One matter: the check that found it, how bad it is, why, and what to do about it."""

    check: str
    result: Result
    reason: str
    cure: str = ""


def ok(check: str, reason: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check, Result.OK, reason)


def advice(check: str, reason: str, cure: str) -> Finding:
    """Something could be better."""
    return Finding(check, Result.ADVICE, reason, cure)


def warning(check: str, reason: str, cure: str) -> Finding:
    """Something will hurt."""
    return Finding(check, Result.WARNING, reason, cure)


def failure(check: str, reason: str, cure: str) -> Finding:
    """Something stands in the way."""
    return Finding(check, Result.FAILURE, reason, cure)


def size(count: float) -> str:
    """Bytes for a person to read."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"


def few(names: list[str] | tuple[str, ...], most: int = 5) -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
