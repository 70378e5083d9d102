"""What open breakers do, and what the monitor makes of a worker's record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from python_backend import guard as guards
from python_backend.adapters.store import Store
from python_backend.admission import Admission, Limits
from python_backend.breaker import State
from python_backend.breaker_settings import BreakerSettings
from python_backend.engine.base import Version
from python_backend.engine.fake import FakeEngine
from python_backend.errors import AdapterFailed, BreakerOpen
from python_backend.guard import Guard
from python_backend.metrics import Metrics
from python_backend.observation import Observation
from python_backend.tier_settings import TierSettings

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


def test_one_slow_adapter_keeps_no_other_out() -> None:
    async def main() -> None:
        guard = make()
        guard.resident = lambda int_id: False
        for _ in range(10):
            guard.latency.loaded(1.0, 0, int_id=1)
        answer(guard, version(2))
        with pytest.raises(BreakerOpen, match="load_latency"):
            answer(guard, version(1))
        guard.latency.loaded(1.0, 0, int_id=3)
        with pytest.raises(BreakerOpen, match="load_latency"):
            answer(guard, version(2))
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


def test_admission_spares_switches_from_the_warning_on(tmp_path: Path) -> None:
    admission = Admission(Limits(16, 4, patience=16, affinity=2))

    def observe(**settings: Any) -> Observation:
        return Observation(
            BreakerSettings.model_validate(settings),
            tmp_path,
            1,
            Store(FakeEngine(), TierSettings(), max_count=4),
            cast(Any, None),
            Metrics(None, {}),
            admission,
        )

    def affinity(observation: Observation, rate: float, now_s: float) -> int:
        observation.guard.switch_rate.value(rate, now_s)
        observation._ease()
        return admission.scheduler.limits.affinity

    def rationed() -> float | None:
        return admission.scheduler.ration and admission.scheduler.ration.rate

    watched = observe()
    assert affinity(watched, 2.9, 0) == 2
    assert (affinity(watched, 3, 1), rationed()) == (16, None)
    assert (affinity(watched, 5, 2), rationed()) == (16, 2.0)
    admission.ration_refusals = 3
    # Half-open: on until it has closed.
    assert (affinity(watched, 1, 3), rationed()) == (16, 2.0)
    assert watched.guard.refusals[guards.SWITCH] == 3
    assert (affinity(watched, 1, 33), rationed()) == (2, None)
    assert (affinity(observe(switch_rate={"enforce": False}), 9, 0), rationed()) == (2, None)
    never = observe(switch_rate={"close": 0})
    assert (affinity(never, 9, 0), rationed()) == (16, 0.1)
