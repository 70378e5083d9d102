"""Breakers as operators see and reset them."""

from __future__ import annotations

from typing import Any

from python_backend.breaker import State
from python_backend.errors import NotFound
from python_backend.guard import Guard


def rows(guard: Guard | None, now_s: float) -> list[dict[str, Any]]:
    """Every breaker, those that are not closed first; ``retry_after_s`` only where it is open."""
    found = [
        {
            "breaker": f"{signal}/{scope}",
            "state": breaker.state.name.lower(),
            "opened": breaker.transitions[State.OPEN],
            "retry_after_s": round(breaker.retry_after_s(now_s), 1)
            if breaker.state is State.OPEN
            else None,
        }
        for signal, scope, breaker in (guard.named() if guard else ())
    ]
    return sorted(found, key=lambda row: row["state"] == "closed")


def reset(guard: Guard | None, name: str) -> bool:
    """Closes the breakers of ``SIGNAL`` or ``SIGNAL/SCOPE``; whether one of them was not closed.

    Raises:
        NotFound: there is no such breaker.
    """
    signal, _, scope = name.partition("/")
    changed = guard.reset(signal, scope) if guard else None
    if changed is None:
        raise NotFound
    return changed > 0
