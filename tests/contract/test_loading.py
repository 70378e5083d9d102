"""Loads beside the step: nobody's tokens wait for them, and they leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from python_backend.adapters.house import weight_bytes
from python_backend.adapters.store import Store
from python_backend.engine.base import Job, Version
from python_backend.errors import AdapterFailed
from python_backend.tier_settings import TierSettings
from tests.contract import rigs
from tests.contract.rigs import FakeRig, Rig, VllmRig, again, collect, job, says, text, whole

PROMPT = "The capital of France is"
SLOW_S = 1.0


def test_a_preload_serves_the_load(rig: Rig) -> None:
    version = again(rig.versions[0])
    rig.run(rig.engine.preload(version))
    assert version.int_id in rig.run(rig.engine.resident())
    rig.run(rig.engine.preload(version))
    answer = whole(rig.run(collect(rig, job(rig, PROMPT, version)))).texts[0]
    assert says(answer) in (rig.words[0], version.name)
    assert rig.run(rig.engine.unload(version.int_id)) is True
    assert version.int_id not in rig.run(rig.engine.resident())


def test_evicted_and_used_again(rig: Rig) -> None:
    version = again(rig.versions[1])
    before = text(rig, job(rig, PROMPT, version))
    assert rig.run(rig.engine.unload(version.int_id)) is True
    rig.run(rig.engine.preload(version))
    assert rig.run(rig.engine.unload(version.int_id)) is True
    assert text(rig, job(rig, PROMPT, version)) == before
    assert rig.run(rig.engine.unload(version.int_id)) is True


def test_what_cannot_be_preloaded_leaves_nothing(rig: Rig, tmp_path: Path) -> None:
    # A wrong shape shows only in a slot; what cannot be read shows now.
    bad = [v for v in rig.bad_versions(tmp_path) if "wide" not in v.lora_id]
    for version in bad:
        for _ in range(2):
            with pytest.raises(AdapterFailed):
                rig.run(rig.engine.preload(version))
        assert version.int_id not in rig.run(rig.engine.resident())
    if isinstance(rig, VllmRig):
        assert _left(rig) == ([], [])


def test_unloading_waits_for_a_load_under_way(rig: Rig) -> None:
    version = again(rig.versions[0])

    async def race() -> None:
        async with _slow(rig, 0.2):
            load = asyncio.create_task(rig.engine.load(version))
            await asyncio.sleep(0.05)
            # Its only caller goes away, and so does the adapter.
            load.cancel()
            assert await rig.engine.unload(version.int_id) is True
            assert version.int_id not in await rig.engine.resident()

    rig.run(race())
    if isinstance(rig, VllmRig):
        assert _left(rig) == ([], [])


@contextlib.asynccontextmanager
async def _slow(rig: Rig, seconds: float) -> AsyncIterator[None]:
    """Every read takes so much longer."""
    if isinstance(rig, FakeRig):
        before, rig.engine.load_s = rig.engine.load_s, seconds
        yield
        rig.engine.load_s = before
        return
    assert isinstance(rig, VllmRig)
    await rig.engine.slow_reads(seconds)
    try:
        yield
    finally:
        await rig.engine.slow_reads(0.0)


def _state(rig: VllmRig) -> dict[str, Any]:
    return rig.run(rig.engine.state())


def _left(rig: VllmRig) -> tuple[list[int], list[int]]:
    """Ids put by, and ids being read."""
    state = _state(rig)
    return state["stash"], state["reading"]


async def _while_streaming(rig: Rig, wanted: Job, versions: list[Version], slow_s: float) -> float:
    """The largest gap of a running stream while each version is loaded in turn, seconds."""
    times: list[float] = []
    async with _slow(rig, slow_s), contextlib.aclosing(rig.engine.generate(wanted)) as steps:
        await anext(steps)

        async def load_all() -> None:
            for version in versions:
                await rig.engine.load(version)

        loading = asyncio.create_task(load_all())
        async for _ in steps:
            times.append(time.perf_counter())
            if loading.done():
                break
        await loading
    return max(b - a for a, b in itertools.pairwise(times))


def test_a_slow_load_stalls_nobody(rig: Rig) -> None:
    tokens = 200 if isinstance(rig, VllmRig) else 50_000
    text(rig, job(rig, PROMPT, rig.versions[0]))
    gaps: list[float] = []
    # A busy machine may hold up a step now and then; a read inside the step would do it each time.
    while len(gaps) < 3 and (not gaps or gaps[-1] >= 0.6 * SLOW_S):
        versions = [again(rig.versions[n % 2]) for n in range(2)]
        wanted = job(rig, PROMPT, rig.versions[0], stream=True, max_tokens=tokens, ignore_eos=True)
        began = time.perf_counter()
        gaps.append(rig.run(_while_streaming(rig, wanted, versions, SLOW_S)))
        assert time.perf_counter() - began >= 2 * SLOW_S
        for version in versions:
            assert rig.run(rig.engine.unload(version.int_id)) is True
    assert gaps[-1] < 0.6 * SLOW_S, gaps


@pytest.mark.server
def test_one_read_for_a_load_and_none_for_its_uses(vllm_rig: VllmRig) -> None:
    version = again(vllm_rig.versions[0])
    before = _state(vllm_rig)["reads"]
    for _ in range(10):
        text(vllm_rig, job(vllm_rig, PROMPT, version))
    assert _state(vllm_rig)["reads"] == before + 1
    assert _left(vllm_rig) == ([], [])
    assert vllm_rig.run(vllm_rig.engine.unload(version.int_id)) is True


@pytest.mark.server
def test_a_preload_takes_no_slot(vllm_rig: VllmRig) -> None:
    for version in vllm_rig.versions:
        text(vllm_rig, job(vllm_rig, PROMPT, version))
    before = _state(vllm_rig)
    version = again(vllm_rig.versions[0])
    vllm_rig.run(vllm_rig.engine.preload(version))
    after = _state(vllm_rig)
    assert after["slots"] == before["slots"]
    assert set(after["host"]) == {*before["host"], version.int_id}
    reads = after["reads"]
    vllm_rig.run(vllm_rig.engine.load(version))
    assert version.int_id in _state(vllm_rig)["slots"]
    assert _state(vllm_rig)["reads"] == reads
    assert vllm_rig.run(vllm_rig.engine.unload(version.int_id)) is True


@pytest.mark.server
def test_a_copy_is_read_first_and_may_be_bad(vllm_rig: VllmRig, tmp_path: Path) -> None:
    known = vllm_rig.versions[0]
    # Another adapter's bytes in the copy's place show that it is the copy that was read.
    for copy, word in ((vllm_rig.versions[1].path, 1), (tmp_path, 0)):
        version = again(known)
        found = copy
        vllm_rig.engine.read_from(lambda _, found=found: found)  # type: ignore[misc]
        assert says(text(vllm_rig, job(vllm_rig, PROMPT, version))) == vllm_rig.words[word]
        vllm_rig.engine.read_from(lambda _: None)
        assert vllm_rig.run(vllm_rig.engine.unload(version.int_id)) is True


@pytest.mark.server
def test_a_budget_of_one_adapter(vllm_rig: VllmRig) -> None:
    """Each evicts the other, and each answers as itself every time."""
    first, second = (again(known) for known in vllm_rig.versions)
    one = weight_bytes(first)
    assert one == weight_bytes(second) > 0
    settings = TierSettings(host_bytes=one)
    store = Store(vllm_rig.engine, settings, max_count=10)

    async def ask(wanted: Job) -> str:
        return whole([step async for step in store.generate(wanted)]).texts[0]

    before = _state(vllm_rig)
    for _ in range(3):
        for version, word in zip((first, second), vllm_rig.words, strict=True):
            assert says(vllm_rig.run(ask(job(vllm_rig, PROMPT, version)))) == word
            assert store.hosted == {version.int_id: one}
            found = set(_state(vllm_rig)["host"]) - set(before["host"])
            assert found == {version.int_id}
    assert _state(vllm_rig)["reads"] == before["reads"] + 6
    assert vllm_rig.run(store.unload(second.int_id)) is True
    assert vllm_rig.run(store.unload(first.int_id)) is False


@pytest.mark.server
def test_a_folder_that_is_gone(vllm_rig: VllmRig, tmp_path: Path) -> None:
    known, other = vllm_rig.versions
    folder = Path(shutil.copytree(known.path, tmp_path / "copy"))
    lost = rigs.version(known.lora_id, folder)
    vllm_rig.run(vllm_rig.engine.preload(lost))
    shutil.rmtree(folder)
    # What the engine holds needs no folder any more.
    assert says(text(vllm_rig, job(vllm_rig, PROMPT, lost))) == vllm_rig.words[0]
    assert vllm_rig.run(vllm_rig.engine.unload(lost.int_id)) is True
    for _ in range(2):
        with pytest.raises(AdapterFailed):
            vllm_rig.run(collect(vllm_rig, job(vllm_rig, PROMPT, lost)))
        assert says(text(vllm_rig, job(vllm_rig, PROMPT, other))) == vllm_rig.words[1]
    assert lost.int_id not in _state(vllm_rig)["host"]
    assert _left(vllm_rig) == ([], [])
