"""What ``list`` and ``status`` show. Pure: state and time are arguments."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from python_backend.adapters import naming
from python_backend.adapters.catalog import Entry, State
from python_backend.adapters.decisions import Decisions
from python_backend.adapters.usage import Usage
from python_backend.engine.base import Version


@dataclasses.dataclass(frozen=True)
class Residents:
    """Ids of the versions in the engine's slots, in its host cache, and in shared memory."""

    slots: frozenset[int] = frozenset()
    host: frozenset[int] = frozenset()
    shm: frozenset[int] = frozenset()

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Residents:
        """From what a worker says of itself (``AsyncLLMEngine.state``)."""
        slots = frozenset(int(found) for found in state.get("slots", ()) if found is not None)
        host, shm = (frozenset(map(int, state.get(tier, ()))) for tier in ("host", "shm"))
        return cls(slots, host, shm)

    def tiers(self, int_id: int) -> list[str]:
        """Where a version's weights lie, the fastest place first. A staged copy is on disk."""
        found = {"slot": self.slots, "host": self.host, "shm": self.shm}
        return [name for name, ids in found.items() if int_id in ids] + ["disk"]


def rows(
    entries: Iterable[Entry],
    retiring: Iterable[Version],
    decided: Decisions,
    usage: Usage,
    int_ids: Mapping[tuple[str, str], int],
    residents: Residents,
    now_s: float,
) -> list[dict[str, Any]]:
    """One row for each adapter, by name; ``leaving`` are its versions that still drain.

    Args:
        int_ids: the engine's id of each version, by lora_id and digest.
        now_s: the clock that ``usage`` was noted by, seconds.
    """
    leaving: dict[str, list[str]] = {}
    for version in retiring:
        leaving.setdefault(version.lora_id, []).append(version.digest)
    known = {entry.lora_id: entry for entry in entries}
    for lora_id, digests in leaving.items():
        known.setdefault(lora_id, Entry(lora_id, State.REMOVING, digests[-1]))
    return [
        _row(entry, decided, usage, int_ids.get((lora_id, entry.digest)), residents, now_s)
        | {"leaving": leaving.get(lora_id, [])}
        for lora_id, entry in sorted(known.items())
    ]


def _row(
    entry: Entry,
    decided: Decisions,
    usage: Usage,
    int_id: int | None,
    residents: Residents,
    now_s: float,
) -> dict[str, Any]:
    uses, last_s = usage.of(entry.lora_id)
    disabled = entry.lora_id in decided.disabled and entry.state is State.READY
    return {
        "lora_id": entry.lora_id,
        "state": State.DISABLED if disabled else entry.state,
        "digest": entry.digest,
        "department": naming.department_of(entry.lora_id),
        "rank": entry.rank,
        "size_bytes": entry.size_bytes,
        "tiers": [] if int_id is None else residents.tiers(int_id),
        "uses": uses,
        "last_use_s_ago": None if last_s is None else round(now_s - last_s, 3),
        "pinned": entry.lora_id in decided.pinned,
        "reason": entry.reason,
    }


def counts(listed: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Adapters by state, every state named."""
    found = Counter(str(row["state"]) for row in listed)
    return {state.value: found[state.value] for state in State}
