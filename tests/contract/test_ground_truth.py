"""A mislabelled adapter in the real engine is found by what the worker read, not by its name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from python_backend.adapters.store import Store
from python_backend.breaker_settings import BreakerSettings
from python_backend.canary import Canary
from python_backend.engine import record
from python_backend.engine.base import Version
from python_backend.errors import AdapterFailed
from python_backend.guard import Guard
from python_backend.monitor import Monitor
from python_backend.tier_settings import TierSettings
from tests.contract.rigs import VllmRig, again, job, text, version


@pytest.mark.server
def test_weights_that_change_in_their_slot_are_found_by_the_canary(vllm_rig: VllmRig) -> None:
    one, other = (again(known) for known in vllm_rig.versions)
    store = Store(vllm_rig.engine, TierSettings(), max_count=8)
    judged: list[bool] = []
    canary = Canary(
        store,
        in_slots=lambda: [one.int_id],
        versions=lambda: {one.int_id: one},
        truth=lambda version: True,
        idle=lambda: True,
        lease=lambda version: contextlib.nullcontext(),
        judged=lambda version, right: judged.append(right),
    )

    def turn() -> float:
        began = time.perf_counter()
        vllm_rig.run(canary.once())
        return time.perf_counter() - began

    def mislabel() -> None:
        for version in (one, other):
            vllm_rig.run(store.load(version))
        ids = (one.int_id, other.int_id)
        vllm_rig.run(vllm_rig.engine._llm.collective_rpc("lora_mislabel", args=ids))

    def answer() -> str:
        return text(vllm_rig, job(vllm_rig, "The capital of France is", one)).split()[0]

    try:
        for _ in range(4):
            turn()
        assert judged == [True, True], "two to learn, two to compare"
        # Switched out and in again it is the same.
        vllm_rig.run(store.load(other))
        turn()
        mislabel()
        assert answer() == vllm_rig.words[1], "the hook does what it says"
        turn()
        assert judged == [True, True, True, False]
        assert (canary.wrong, answer()) == (set(), vllm_rig.words[0]), "it was read anew"
        turn()
        assert judged[-1]
    finally:
        for version in (one, other):
            vllm_rig.run(store.unload(version.int_id))


@pytest.mark.server
def test_other_weights_under_an_adapters_id_are_found(vllm_rig: VllmRig) -> None:
    right, other = vllm_rig.versions
    good = version(right.lora_id, right.path)
    # What the front end believes, and what the engine is really given under that id.
    believed = version(right.lora_id, right.path)
    given = Version(believed.lora_id, believed.digest, believed.int_id, other.path)

    async def warm(one: Version) -> None:
        raise AssertionError("nothing is slow here")

    guard = Guard(BreakerSettings(), warm, time.monotonic)
    path = record.path_of(vllm_rig.engine._flag_path.parent, 0)
    known = {one.int_id: one for one in (good, believed)}
    monitor = Monitor(
        guard,
        [record.RecordFile(path)],
        lambda updates: None,
        versions=lambda: known,
        adapters=dict,
    )

    def look(until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not until():
            assert time.monotonic() < deadline
            monitor.look(time.monotonic())
            vllm_rig.run(monitor._hash_missing())
            time.sleep(0.05)

    try:
        vllm_rig.run(vllm_rig.engine.load(good))
        vllm_rig.run(vllm_rig.engine.load(given))
        look(lambda: None not in (monitor.truth(good), monitor.truth(believed)))
        assert monitor.truth(good) is True
        assert monitor.truth(believed) is False
        with guard.entered(good):
            pass
        with pytest.raises(AdapterFailed), guard.entered(believed):
            pass
        assert guard.route_errors.ratio == 0.5
        look(lambda: guard.checks["wrong"] >= 2)
    finally:
        for one in (good, given):
            vllm_rig.run(vllm_rig.engine.unload(one.int_id))
