"""Which adapters are worth their memory. Pure: time and state are arguments.

Priority = 0.7·request_freq + 0.3·recent_usage, between 0 and 1. Both halve every half-life h:

* request_freq = f/max(f) over the adapters compared, where f = Σ 2^(−(now − t)/h) over the times t
  of an adapter's requests;
* recent_usage = 2^(−(now − last)/h), 0 for one never used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

FREQUENCY, RECENCY = 0.7, 0.3


class Heat:
    """How often and how lately each adapter was used.

    Args:
        half_life_s: after which a use counts half, seconds.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        #: By lora_id: f as of the last use, and the time of that.
        self._uses: dict[str, tuple[float, float]] = {}
        #: Requests noted so far.
        self.noted = 0

    def note(self, lora_id: str, now_s: float) -> None:
        """One more request, at ``now_s`` seconds."""
        self.noted += 1
        frequency, last_s = self._uses.get(lora_id, (0.0, now_s))
        aged = frequency * self._left(now_s - last_s)
        self._uses[lora_id] = (aged + 1.0, max(now_s, last_s))

    def priorities(self, lora_ids: Iterable[str], now_s: float) -> dict[str, float]:
        """The priority of each of ``lora_ids``, compared with one another."""
        aged: dict[str, tuple[float, float]] = {}
        for lora_id in lora_ids:
            found = self._uses.get(lora_id)
            left = self._left(now_s - found[1]) if found else 0.0
            aged[lora_id] = (found[0] * left if found else 0.0, left)
        most = max((frequency for frequency, _ in aged.values()), default=0.0) or 1.0
        return {
            lora_id: FREQUENCY * frequency / most + RECENCY * recency
            for lora_id, (frequency, recency) in aged.items()
        }

    def forget(self, lora_id: str) -> None:
        """Drops an adapter that is gone."""
        self._uses.pop(lora_id, None)

    def keep_only(self, lora_ids: Iterable[str]) -> None:
        """Forgets all other adapters."""
        kept = set(lora_ids)
        self._uses = {name: found for name, found in self._uses.items() if name in kept}

    def ages(self, now_s: float) -> dict[str, tuple[float, float]]:
        """By lora_id: f as of the last use, and how long ago that was, seconds."""
        return {name: (f, max(0.0, now_s - last_s)) for name, (f, last_s) in self._uses.items()}

    def restore(self, ages: Mapping[str, tuple[float, float]], now_s: float) -> None:
        """Takes over what ``ages`` gave, where nothing is known yet."""
        for lora_id, (frequency, age_s) in ages.items():
            self._uses.setdefault(lora_id, (frequency, now_s - age_s))

    def _left(self, age_s: float) -> float:
        return float(2.0 ** (-max(0.0, age_s) / self._half_life_s))


@dataclasses.dataclass(frozen=True)
class Held:
    """One adapter in a tier.

    ``reload_cost`` decides between equal priorities: what costs less to get back goes first.
    ``kept`` is what is in use or pinned: it never goes. ``queued`` is what somebody waits for: it
    goes last, since it would be read again at once.
    """

    int_id: int
    size_bytes: int
    priority: float
    reload_cost: float = 0.0
    kept: bool = False
    queued: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """The ids that go, in order, and whether there is room then."""

    evict: tuple[int, ...] = ()
    fits: bool = True


def make_room(
    held: Iterable[Held],
    need_bytes: int,
    budget_bytes: int,
    *,
    need_count: int = 1,
    max_count: int | None = None,
    below: float = float("inf"),
) -> Plan:
    """What must go for ``need_bytes`` to come in within the budget.

    What nobody waits for goes first, the lowest priority before others, and nothing that need not.
    Where there is not enough that may go, all of that goes and ``fits`` is False: it is the
    caller's to do it or leave it.

    Args:
        need_count, max_count: the same in adapters; no limit by default.
        below: only what has a priority below this may go.
    """
    held = list(held)
    over_bytes = sum(one.size_bytes for one in held) + need_bytes - budget_bytes
    over_count = 0 if max_count is None else len(held) + need_count - max_count
    order = sorted(
        (one for one in held if not one.kept and one.priority < below),
        key=lambda one: (one.queued, one.priority, one.reload_cost, one.int_id),
    )
    going: list[Held] = []
    for one in order:
        if over_bytes <= 0 and over_count <= 0:
            break
        going.append(one)
        over_bytes -= one.size_bytes
        over_count -= 1
    fits = over_bytes <= 0 and over_count <= 0
    if fits:
        # A large one at the end may have made the small ones before it needless.
        for one in reversed(going[:]):
            if over_bytes + one.size_bytes <= 0 and over_count + 1 <= 0:
                going.remove(one)
                over_bytes += one.size_bytes
                over_count += 1
    return Plan(tuple(one.int_id for one in going), fits)


def wishes(
    warm: Literal["all"] | int | tuple[str, ...],
    ready: Iterable[str],
    pinned: Iterable[str],
    priorities: Mapping[str, float],
) -> list[str]:
    """The lora_ids to be warm, most wanted first: pinned, then by priority, then by name.

    Args:
        warm: all, the first so many, or these (in this order).
        ready: those that can be served.
    """
    there, first = set(ready), set(pinned)
    if isinstance(warm, tuple):
        return [lora_id for lora_id in dict.fromkeys(warm) if lora_id in there]
    order = sorted(there, key=lambda name: (name not in first, -priorities.get(name, 0.0), name))
    return order if warm == "all" else order[:warm]
