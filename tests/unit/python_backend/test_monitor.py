"""What the monitor makes of a worker's record."""

from __future__ import annotations

import asyncio
import hashlib
import math
from pathlib import Path
from typing import Any

from python_backend import lora_metrics
from python_backend.breaker import State
from python_backend.engine.base import Version
from python_backend.engine.record import Load, RecordFile, WorkerRecord
from python_backend.metrics import Update
from python_backend.monitor import Monitor
from tests.unit.python_backend.test_guard import make, version


class Desk:
    """A monitor over a record that the test writes."""

    def __init__(self, tmp_path: Path, *, by_time_share: bool = False) -> None:
        self.guard = make()
        self.known: dict[int, Version] = {}
        self.shm = (0.0, 0.0)
        self.file = RecordFile(tmp_path / "record")
        self.monitor = Monitor(
            self.guard,
            [RecordFile(tmp_path / "record")],
            lambda updates: None,
            versions=lambda: self.known,
            adapters=lambda: {"ready": 2, "failed": 0},
            shm=lambda: self.shm,
            by_time_share=by_time_share,
        )

    def look(self, now_s: float = 0.0, **record: Any) -> dict[tuple[str, str], Any]:
        if record:
            self.file.write(WorkerRecord(**record))
        return named(self.monitor.look(now_s))


def named(updates: list[Update]) -> dict[tuple[str, str], Any]:
    return {(u.name, ",".join(value for _, value in u.labels)): tuple(u.values) for u in updates}


def test_before_the_first_record_there_is_something_to_see(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    found = desk.look()
    assert found[lora_metrics.ADAPTERS, "ready"] == (2,)
    assert found[lora_metrics.BREAKER_STATE, "load_latency"] == (0,)
    assert found[lora_metrics.BREAKER_TRANSITIONS, "routing,open"] == (0,)
    assert desk.monitor.resident(1)
    assert desk.look() == {}


def test_counters_gain_and_gauges_change(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    unknown = bytes(32)
    first = desk.look(0, slots=((1, unknown), None), host=(1, 2), slot_bytes=200, activations=1)
    assert first[lora_metrics.RESIDENT, "slot"] == (1,)
    assert first[lora_metrics.RESIDENT, "host"] == (2,)
    assert first[lora_metrics.MEMORY, "adapters,budget"] == (200,)
    assert first[lora_metrics.MEMORY, "adapters,used"] == (100,)
    assert first[lora_metrics.ACTIVATIONS, ""] == (1,)
    slots = ((1, unknown), (2, unknown))
    more = {"slots": slots, "host": (1, 2), "slot_bytes": 200, "activations": 60}
    second = desk.look(5, **more, evictions=50, activation_s=1.0)
    assert second[lora_metrics.ACTIVATIONS, ""] == (59,)
    assert second[lora_metrics.SWITCHES, ""] == (50,)
    assert second[lora_metrics.SWITCH_RATE, ""] == (5,)
    assert second[lora_metrics.SWITCH_TIME, ""] == (0.1,)
    assert second[lora_metrics.BREAKER_STATE, "switch_rate"] == (2,)
    assert desk.monitor.resident(2)
    assert not desk.monitor.resident(3)


def test_each_load_is_observed_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    loads = tuple(Load(number, number, 0.2) for number in range(1, 13))
    first = desk.look(0, loads=2, recent=loads[:2])
    assert first[lora_metrics.LOAD_SECONDS, "host"] == (0.2, 0.2)
    second = desk.look(1, loads=12, recent=loads)
    assert second[lora_metrics.LOAD_SECONDS, "host"] == (0.2,) * 10
    assert second[lora_metrics.BREAKER_STATE, "load_latency"] == (2,)
    assert (lora_metrics.LOAD_SECONDS, "host") not in desk.look(2)


def test_fragmentation_of_the_heap_never_breaks(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    found = desk.look(0, heap_fragmentation=0.9, slots=(None,))
    assert found[lora_metrics.FRAGMENTATION, "heap"] == (0.9,)
    assert (lora_metrics.FRAGMENTATION, "device") not in found
    assert found[lora_metrics.BREAKER_STATE, "fragmentation"] == (0,)
    device = {"device_allocated": 70.0, "device_reserved": 100.0, "slot_bytes": 20}
    found = desk.look(5, **device, slots=(None,))
    assert found[lora_metrics.MEMORY, "base,used"] == (50,)
    assert found[lora_metrics.BREAKER_STATE, "fragmentation"] == (2,)


def test_the_slots_are_compared_with_what_was_staged(tmp_path: Path) -> None:
    async def main() -> None:
        desk = Desk(tmp_path)
        for int_id in (1, 2):
            folder = tmp_path / str(int_id)
            folder.mkdir()
            (folder / "adapter_model.safetensors").write_bytes(b"weights %d" % int_id)
            desk.known[int_id] = version(int_id, str(folder))
        mislabelled = hashlib.sha256(b"weights 1").digest()
        slots = ((1, mislabelled), (2, mislabelled), (3, mislabelled))
        desk.look(0, slots=slots)
        assert desk.monitor.truth(desk.known[2]) is None
        await desk.monitor._hash_missing()
        found = desk.look(1)
        assert desk.monitor.truth(desk.known[1]) is True
        assert desk.monitor.truth(desk.known[2]) is False
        assert found[lora_metrics.ROUTE_CHECKS, "right"] == (1,)
        assert found[lora_metrics.ROUTE_CHECKS, "wrong"] == (1,)
        assert not any(name == lora_metrics.ROUTE_CHECKS for name, _ in desk.look(2))
        desk.known.clear()
        await desk.monitor._hash_missing()
        assert desk.monitor.truth(version(1)) is None

    asyncio.run(main())


def test_fragmentation_of_shared_memory_breaks_by_itself(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert (lora_metrics.FRAGMENTATION, "shm") not in desk.look(0), "there is no such pool"
    desk.shm = (1000.0, 200.0)
    found = desk.look(1)
    assert found[lora_metrics.FRAGMENTATION, "shm"] == (0.2,)
    assert found[lora_metrics.BREAKER_STATE, "fragmentation"] == (1,)
    desk.shm = (1000.0, 300.0)
    assert desk.look(2)[lora_metrics.BREAKER_STATE, "fragmentation"] == (2,)
    desk.shm = (1000.0, 149.0)
    assert desk.look(3)[lora_metrics.BREAKER_STATE, "fragmentation"] == (3,)
    assert desk.look(63)[lora_metrics.BREAKER_STATE, "fragmentation"] == (0,)


def test_an_allocator_that_tells_no_number_changes_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    full = {"device_allocated": 60.0, "device_reserved": 100.0, "slots": (None,)}
    assert desk.look(0, **full)[lora_metrics.BREAKER_STATE, "fragmentation"] == (2,)
    for odd in (math.nan, math.inf, -math.inf, 0.0, -1.0):
        record = {**full, "device_reserved": odd, "heap_fragmentation": math.nan}
        found = desk.look(100, **record)
        assert (lora_metrics.BREAKER_STATE, "fragmentation") not in found
        assert (lora_metrics.FRAGMENTATION, "device") not in found
        assert all(not math.isnan(value) for values in found.values() for value in values)
    assert desk.guard.fragmentation.state is State.OPEN


def test_a_worker_that_does_not_answer_any_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    slots = ((1, bytes(32)),)
    desk.look(0, slots=slots, host=(1,))
    desk.look(1, slots=slots, host=(1,), evictions=60)
    assert desk.guard.switch_rate.state is State.OPEN
    # Its last record stays. Nothing switches by it, and what was resident is.
    for second in range(2, 43):
        desk.look(second)
    assert desk.guard.switch_rate.state is State.CLOSED
    assert desk.monitor.resident(1) and not desk.monitor.resident(2)
    # One whose record is torn for ever is as one that says nothing.
    (tmp_path / "record").write_bytes(b"\xff" * (tmp_path / "record").stat().st_size)
    assert desk.look(50) == {}


def test_a_clock_that_jumps_back(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    slots = (None,)
    desk.look(1000, slots=slots)
    found = desk.look(1001, slots=slots, evictions=50, activation_s=2.0)
    assert found[lora_metrics.SWITCH_RATE, ""] == (5,)
    found = desk.look(3, slots=slots, evictions=60, activation_s=2.5)
    assert found[lora_metrics.SWITCH_RATE, ""] == (6,)
    assert desk.guard.switch_rate.state is State.OPEN
    assert found[lora_metrics.SWITCH_TIME, ""] == (0.25,)
    # From then on time goes on, and what was is over when the old time has come again.
    desk.look(1012, slots=slots, evictions=60, activation_s=2.5)
    assert desk.guard.switch_rate.state is State.HALF_OPEN


def test_each_activation_is_observed_once_and_loads_per_mib(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    some = ((1, 0.01), (2, 0.02), (3, 0.03))
    loads = (Load(1, 1, 0.5, 2 << 20), Load(2, 2, 0.3, 0))
    first = desk.look(0, activations=2, recent_activations=some[:2], loads=2, recent=loads)
    assert first[lora_metrics.ACTIVATION_DURATION, ""] == (0.01, 0.02)
    assert first[lora_metrics.LOAD_PER_MIB, ""] == (0.25,)
    second = desk.look(1, activations=3, recent_activations=some, loads=2, recent=loads)
    assert second[lora_metrics.ACTIVATION_DURATION, ""] == (0.03,)
    # Another worker, which counts from 1 again.
    third = desk.look(2, activations=1, recent_activations=((1, 0.04),))
    assert third[lora_metrics.ACTIVATION_DURATION, ""] == (0.04,)


def test_the_share_of_time_may_govern(tmp_path: Path) -> None:
    desk = Desk(tmp_path, by_time_share=True)
    slots = (None,)
    assert desk.monitor.switches_at(0.5) == 0.5, "nothing is known yet"
    desk.look(0, slots=slots)
    desk.look(1, slots=slots, evictions=1000, activations=1000, activation_s=2.0)
    assert desk.guard.switch_rate.state is State.CLOSED, "a hundred a second, a fifth of the time"
    # At 2 ms each, this share of the time is so many a second.
    assert desk.monitor.switches_at(0.1) == 50
