"""What the monitor makes of a worker's record."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from python_backend import lora_metrics
from python_backend.engine.base import Version
from python_backend.engine.record import Load, RecordFile, WorkerRecord
from python_backend.metrics import Update
from python_backend.monitor import Monitor
from tests.unit.python_backend.test_guard import make, version


class Desk:
    """A monitor over a record that the test writes."""

    def __init__(self, tmp_path: Path) -> None:
        self.guard = make()
        self.known: dict[int, Version] = {}
        self.file = RecordFile(tmp_path / "record")
        self.monitor = Monitor(
            self.guard,
            [RecordFile(tmp_path / "record")],
            lambda updates: None,
            versions=lambda: self.known,
            adapters=lambda: {"ready": 2, "failed": 0},
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
    found = desk.look(5, device_allocated=70.0, device_reserved=100.0, slots=(None,))
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
