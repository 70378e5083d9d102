"""What open breakers do, and what the monitor makes of a worker's record."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from python_backend import guard as guards
from python_backend import lora_metrics
from python_backend.admission import Admission, Limits
from python_backend.breaker import State
from python_backend.breaker_settings import BreakerSettings
from python_backend.engine.base import Version
from python_backend.engine.fake import FakeEngine
from python_backend.engine.record import Load, RecordFile, WorkerRecord
from python_backend.errors import AdapterFailed, BreakerOpen
from python_backend.guard import Guard
from python_backend.metrics import Metrics, Update
from python_backend.monitor import Monitor
from python_backend.observation import Observation

CLOCK = [0.0]


def version(int_id: int = 1, path: str = "staged") -> Version:
    return Version("fin_risk_v1", "d" * 64, int_id, Path(path))


def make(warm: Callable[[Version], Any] | None = None, **settings: Any) -> Guard:
    async def nothing(version: Version) -> None:
        pass

    CLOCK[0] = 0.0
    return Guard(BreakerSettings.model_validate(settings), warm or nothing, lambda: CLOCK[0])


def answer(guard: Guard, one: Version) -> None:
    with guard.entered(one):
        pass


def test_wrong_weights_are_never_answered_from_and_open_the_breaker() -> None:
    guard = make()
    guard.truth = lambda version: version.int_id == 2
    for _ in range(100):
        with pytest.raises(AdapterFailed):
            answer(guard, version(1))
        answer(guard, version(2))
    with pytest.raises(BreakerOpen, match="routing") as caught:
        answer(guard, version(1))
    assert caught.value.retry_after == 5
    answer(guard, version(2))
    assert guard.states()[guards.ROUTING] is State.OPEN
    assert guard.route_errors.ratio == pytest.approx(100 / 201)
    assert guard.checks == {"right": 101, "wrong": 100}
    # A probe that finds the right weights, and 99 more.
    CLOCK[0] = 5.0
    guard.truth = lambda version: True
    for _ in range(100):
        answer(guard, version(1))
    assert guard.states()[guards.ROUTING] is State.CLOSED
    assert guard.transitions()[guards.ROUTING] == {
        State.OPEN: 1,
        State.HALF_OPEN: 1,
        State.CLOSED: 1,
        State.WARNING: 0,
    }


def test_errors_and_what_is_not_known_are_neutral() -> None:
    guard = make()
    answer(guard, version())
    guard.truth = lambda version: True
    with pytest.raises(ValueError, match="caller"), guard.entered(version()):
        raise ValueError("caller")
    assert not guard.checks
    with guard.entered(None):
        pass


def test_at_most_so_many_versions_have_a_breaker() -> None:
    guard = make()
    for int_id in range(1, 1500):
        answer(guard, version(int_id))
    assert len(guard._routes) == 1000


def test_slow_loads_move_off_the_request_path() -> None:
    async def main() -> None:
        warmed: list[int] = []

        async def warm(one: Version) -> None:
            warmed.append(one.int_id)

        guard = make(warm)
        resident = {9}
        guard.resident = lambda int_id: int_id in resident
        guard.load_latency.value(0.1, 0)
        for _ in range(3):
            with pytest.raises(BreakerOpen, match="load_latency") as caught:
                answer(guard, version(1))
            assert caught.value.retry_after == 1
        answer(guard, version(9))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert warmed == [1]
        resident.add(1)
        answer(guard, version(1))
        # A few may try again, each on a lease.
        CLOCK[0] = 5.0
        for int_id in range(20, 24):
            answer(guard, version(int_id))
        with pytest.raises(BreakerOpen):
            answer(guard, version(24))
        guard.reset(guards.LOAD)
        answer(guard, version(25))
        assert guard.refusals == {guards.LOAD: 4}
        guard.stop()

    asyncio.run(main())


def test_fragmentation_lets_nothing_new_in() -> None:
    guard = make()
    guard.resident = lambda int_id: int_id == 9
    guard.fragmentation.value(0.3, 0)
    with pytest.raises(BreakerOpen, match="fragmentation"):
        answer(guard, version(1))
    answer(guard, version(9))


def test_not_enforced_is_shown_only() -> None:
    off = {"enforce": False}
    guard = make(fragmentation=off, load_latency=off, routing=off)
    guard.resident = lambda int_id: False
    guard.fragmentation.value(1, 0)
    guard.load_latency.value(1, 0)
    answer(guard, version(1))
    assert guard.states()[guards.LOAD] is State.OPEN


def test_reset_in_half_open_forgets_what_opened_it() -> None:
    guard = make()
    guard.truth = lambda version: False
    for int_id in (1, 2):
        for _ in range(100):
            with pytest.raises(AdapterFailed):
                answer(guard, version(int_id))
    CLOCK[0] = 5.0
    guard.truth = lambda version: None
    with guard.entered(version(1)):
        assert guard.states()[guards.ROUTING] is State.OPEN, "the other one's"
        assert guard.reset(guards.ROUTING, "fin_risk_v1") == 2
        assert guard.reset(guards.ROUTING, version(1).name) == 0
    assert guard.states()[guards.ROUTING] is State.CLOSED
    # The probe that was out has given nothing back twice, and one wrong answer opens nothing.
    guard.truth = lambda version: False
    with pytest.raises(AdapterFailed):
        answer(guard, version(1))
    assert guard.states()[guards.ROUTING] is State.CLOSED
    for _ in range(10):
        guard.latency.loaded(1.0, 5.0)
    CLOCK[0] = 10.0
    guard.resident = lambda int_id: False
    guard.truth = lambda version: None
    answer(guard, version(3))
    assert guard.states()[guards.LOAD] is State.HALF_OPEN
    assert guard.reset(guards.LOAD) == 1
    guard.latency.loaded(1.0, 11.0)
    assert guard.states()[guards.LOAD] is State.CLOSED
    assert (guard.reset("nothing"), guard.reset(guards.ROUTING, "fin_none_v1")) == (None, None)
    assert guard.reset(guards.SWITCH) == 0


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


def test_admission_spares_switches_from_the_warning_on(tmp_path: Path) -> None:
    admission = Admission(Limits(16, 4, patience=16, affinity=2))

    def observe(**settings: Any) -> Observation:
        return Observation(
            BreakerSettings.model_validate(settings),
            tmp_path,
            1,
            FakeEngine(),
            cast(Any, None),
            Metrics(None, {}),
            admission,
        )

    def affinity(observation: Observation, rate: float, now_s: float) -> int:
        observation.guard.switch_rate.value(rate, now_s)
        observation._ease()
        return admission.scheduler.limits.affinity

    watched = observe()
    assert affinity(watched, 2.9, 0) == 2
    assert affinity(watched, 3, 1) == 16
    assert affinity(watched, 5, 2) == 16
    assert affinity(watched, 1, 3) == 16
    assert affinity(watched, 1, 33) == 2
    assert affinity(observe(switch_rate={"enforce": False}), 9, 0) == 2
