"""Looks at the workers' records, tells the breakers, and shows it all. Lives on the engine's loop.

Looking costs a memory read: no call into the engine, no step to wait for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from python_backend import lora_metrics as names
from python_backend import signals
from python_backend.adapters.weights import WEIGHTS_FILE
from python_backend.breaker import State
from python_backend.engine.base import Version
from python_backend.engine.record import UNKNOWN, RecordFile, WorkerRecord
from python_backend.guard import Guard
from python_backend.metrics import Update
from python_backend.shown import Shown
from python_backend.signals import SWITCH_WINDOW_S

log = logging.getLogger(__name__)

#: How often it looks, seconds.
EVERY_S = 0.5


class Monitor:
    """See the module.

    Args:
        files: the workers' records, the first worker's first.
        put: takes metric updates.
        versions: the versions there are, by the engine's id.
        adapters: how many adapters the catalog has, by state.
        shm: bytes that copies in shared memory may take, and how many of those taken hold nothing.
        after_look: called when the breakers have heard of the newest records.
        by_time_share: the share of time that switching takes governs, and not its rate.
    """

    def __init__(
        self,
        guard: Guard,
        files: Sequence[RecordFile],
        put: Callable[[Sequence[Update]], None],
        *,
        versions: Callable[[], Mapping[int, Version]],
        adapters: Callable[[], Mapping[str, int]],
        shm: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        after_look: Callable[[], None] = lambda: None,
        by_time_share: bool = False,
    ) -> None:
        self._after_look, self._shm, self._by_time_share = after_look, shm, by_time_share
        self._guard, self._files, self._put = guard, files, put
        self._versions, self._adapters = versions, adapters
        self._rate = signals.SwitchRate()
        self._latency = guard.latency
        self._busy: deque[tuple[float, float]] = deque()
        self._record = WorkerRecord()
        self._held: frozenset[int] = frozenset()
        #: sha256 of the weights that were read for an id, and of those that should have been.
        self._loaded: dict[int, bytes] = {}
        self._expected: dict[int, bytes] = {}
        self._checked: set[tuple[int, bytes]] = set()
        self._shown = Shown()
        guard.truth, guard.resident = self.truth, self.resident

    def resident(self, int_id: int) -> bool:
        """Whether the engine holds it in slot or host cache; True where nothing is known."""
        return not self._record.slots or int_id in self._held

    def in_slots(self) -> list[int]:
        """Ids of the adapters in slots, as of the last look."""
        return [slot[0] for slot in self._record.slots if slot]

    def switches_at(self, level: float) -> float:
        """Switches a second at which the governing signal has this level."""
        record = self._record
        if not self._by_time_share or not record.activation_s:
            return level
        return level * record.activations / record.activation_s

    def truth(self, version: Version) -> bool | None:
        """Whether the weights in the version's slot are its own; None while that is not known."""
        loaded = self._loaded.get(version.int_id)
        expected = self._expected.get(version.int_id)
        return None if loaded is None or expected is None else loaded == expected

    async def follow(self, clock: Callable[[], float]) -> None:
        """Looks again and again, for ever. ``clock``: monotonic, seconds."""
        while True:
            try:
                self._put(self.look(clock()))
                await self._hash_missing()
            except Exception:
                log.exception("the signals could not be read")
                await asyncio.sleep(10 * EVERY_S)
            await asyncio.sleep(EVERY_S)

    async def _hash_missing(self) -> None:
        known = self._versions()
        for int_id in [i for i in self._loaded if i in known and i not in self._expected]:
            digest = await asyncio.to_thread(weights_digest, known[int_id].path)
            if digest is not None:
                self._expected[int_id] = digest
        for gone in self._expected.keys() - known.keys():
            del self._expected[gone]

    def look(self, now_s: float) -> list[Update]:
        """Takes the newest records in; what has changed, as updates."""
        found: list[Update] = []
        records = [record for file in self._files if (record := file.read()) is not None]
        if records:
            found += self._loads(records[0], now_s)
            self._record = records[0]
            self._slots(records)
            found += self._engine_updates(records[0], now_s)
        found += self._pool(now_s)
        self._after_look()
        found += self._breaker_updates()
        for state, count in self._adapters().items():
            found += self._shown.gauge(names.ADAPTERS, count, ("state", state))
        return found

    def _loads(self, record: WorkerRecord, now_s: float) -> list[Update]:
        seen = self._record.loads if record.loads >= self._record.loads else 0
        new = [load for load in record.recent if load.number > seen]
        for load in new:
            self._latency.loaded(load.seconds, now_s, load.size, load.int_id)
        seconds = [load.seconds for load in new]
        last = self._record.activations
        before = last if record.activations >= last else 0
        activated = [took for number, took in record.recent_activations if number > before]
        found = [Update(names.LOAD_SECONDS, seconds, (("tier", "host"),))] if new else []
        return found + ([Update(names.ACTIVATION_DURATION, activated)] if activated else [])

    def _slots(self, records: Sequence[WorkerRecord]) -> None:
        self._held = frozenset(records[0].host) | {s[0] for s in records[0].slots if s}
        loaded: dict[int, bytes] = {}
        for record in records:
            for int_id, digest in filter(None, record.slots):
                if digest != UNKNOWN:
                    # One worker that differs from the others is wrong for all.
                    same = loaded.get(int_id, digest) == digest
                    loaded[int_id] = digest if same else b""
        self._loaded = loaded
        for pair in [p for p in loaded.items() if p[0] in self._expected]:
            if pair not in self._checked:
                self._checked.add(pair)
                right = pair[1] == self._expected[pair[0]]
                self._guard.checks["right" if right else "wrong"] += 1
                if not right:
                    log.error("adapter id %d: the engine has read other weights", pair[0])
        self._checked &= set(loaded.items())

    def _pool(self, now_s: float) -> list[Update]:
        budget, empty = self._shm()
        share = signals.fragmentation(budget - empty, budget)
        self._guard.shm_fragmentation.value(share, now_s)
        return self._shown.gauge(names.FRAGMENTATION, share, ("pool", "shm"))

    def _engine_updates(self, record: WorkerRecord, now_s: float) -> list[Update]:
        """The breakers of the worker's levels hear of them; then they are shown."""
        rate, share = self._rate.read(record.evictions, now_s), self._switch_time(record, now_s)
        self._guard.switch_rate.value(share if self._by_time_share else rate, now_s)
        used = [slot for slot in record.slots if slot]
        device = signals.fragmentation(record.device_allocated, record.device_reserved)
        self._guard.fragmentation.value(device, now_s)
        one = record.slot_bytes / max(1, len(record.slots))
        found = self._shown.gauge(names.SWITCH_RATE, rate)
        found += self._shown.gauge(names.SWITCH_TIME, share)
        found += self._shown.gauge(names.LOAD_MEDIAN, self._latency.median_s)
        found += self._shown.gauge(names.LOAD_PER_MIB, self._latency.median_s_per_mib)
        for pool, lost in (("heap", record.heap_fragmentation), ("device", device)):
            found += self._shown.gauge(names.FRAGMENTATION, lost, ("pool", pool))
        for kind, size in (("budget", record.slot_bytes), ("used", one * len(used))):
            found += self._shown.gauge(names.MEMORY, size, ("pool", "adapters"), ("kind", kind))
            found += self._shown.gauge(names.TIER_BYTES, size, ("tier", "slot"), ("kind", kind))
        for kind, size in (("budget", record.device_reserved), ("used", record.device_allocated)):
            found += self._shown.gauge(names.MEMORY, size, ("pool", "device"), ("kind", kind))
        base = record.device_allocated - record.slot_bytes
        found += self._shown.gauge(names.MEMORY, base, ("pool", "base"), ("kind", "used"))
        for tier, count in (("slot", len(used)), ("host", len(record.host))):
            found += self._shown.gauge(names.RESIDENT, count, ("tier", tier))
        found += self._shown.count(names.SWITCHES, record.evictions)
        found += self._shown.count(names.ACTIVATIONS, record.activations)
        found += self._shown.count(names.ACTIVATION_SECONDS, record.activation_s)
        return found

    def _switch_time(self, record: WorkerRecord, now_s: float) -> float:
        busy = self._busy
        busy.append((now_s, record.activation_s))
        while len(busy) > 1 and busy[1][0] <= now_s - SWITCH_WINDOW_S:
            busy.popleft()
        return min(1.0, max(0.0, record.activation_s - busy[0][1]) / SWITCH_WINDOW_S)

    def _breaker_updates(self) -> list[Update]:
        guard = self._guard
        found = self._shown.gauge(names.ROUTE_ERRORS, guard.route_errors.ratio)
        for signal, state in guard.states().items():
            found += self._shown.gauge(names.BREAKER_STATE, state, ("signal", signal))
        for signal, entered in guard.transitions().items():
            for to in State:
                labels = (("signal", signal), ("to", to.name.lower()))
                found += self._shown.count(names.BREAKER_TRANSITIONS, entered[to], *labels)
            found += self._shown.count(
                names.BREAKER_REFUSALS, guard.refusals[signal], ("signal", signal)
            )
        for result in ("right", "wrong"):
            found += self._shown.count(names.ROUTE_CHECKS, guard.checks[result], ("result", result))
        return found


def weights_digest(folder: Path) -> bytes | None:
    """sha256 of the weights in a staged folder; None if it has gone."""
    try:
        with open(folder / WEIGHTS_FILE, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None


def by_state(states: Sequence[str], known: Sequence[str]) -> Counter[str]:
    """How many of each, the ``known`` ones named even where there is none."""
    return Counter({**dict.fromkeys(known, 0), **Counter(states)})
