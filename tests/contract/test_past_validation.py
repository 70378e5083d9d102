"""The second line of defence: what validation refuses is pushed straight into the real engine."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from python_backend.engine.base import Version
from python_backend.errors import AdapterFailed, ServingError, Unavailable
from tests.badadapters import BOMB, KINDS, make
from tests.contract.rigs import VllmRig, again, collect, job, says, text, version, whole

pytestmark = pytest.mark.server
PROMPT = "The capital of France is"
#: Non-finite numbers poison the KV cache: a test of their own. Opening a pipe and matching a slow
#: expression never return, so only validation can stop these: it looks before it opens, and
#: resolves expressions under a time limit.
APART = {"weights_pipe", "rank_pattern_slow"} | {
    kind for kind, code in KINDS.items() if code == "non_finite"
}


@pytest.fixture
def rig(vllm_rig: VllmRig) -> VllmRig:
    return vllm_rig


def bad(folder: Path) -> dict[str, Version]:
    made = {}
    for kind in sorted(KINDS.keys() - APART):
        make(kind, folder / kind)
        made[kind] = version("mark_bad_v1", folder / kind)
    return made


async def _slots(rig: VllmRig) -> set[int | None]:
    state = await rig.engine.state()  # type: ignore[attr-defined]
    return {*state["slots"], *state["host"]}


def test_all_of_them_loaded_during_a_stream(rig: VllmRig, tmp_path: Path) -> None:
    wanted = job(rig, PROMPT, None, max_tokens=150, ignore_eos=True)
    undisturbed = whole(rig.run(collect(rig, wanted))).texts
    refused: set[str] = set()

    async def push() -> list[str]:
        running = asyncio.create_task(
            collect(rig, dataclasses.replace(wanted, uid=f"{wanted.uid}again"))
        )
        for kind, one in bad(tmp_path).items():
            try:
                await rig.engine.load(one)
            except AdapterFailed:
                refused.add(kind)
                assert one.int_id not in await _slots(rig), kind
            else:
                await rig.engine.unload(one.int_id)
        return whole(await running).texts

    assert rig.run(push()) == undisturbed
    assert rig.engine.alive
    # What vLLM itself refuses is no small part; the rest it would have served, silently wrong.
    assert {"weights_empty", "weights_60_percent", "in_larger", "only_a"} <= refused
    assert not list(tmp_path.rglob(BOMB))
    for known, word in zip(rig.versions, rig.words, strict=True):
        assert says(text(rig, job(rig, PROMPT, known))) == word


@pytest.mark.parametrize("kind", ["weights_60_percent", "in_larger", "only_a", "empty_folder"])
def test_a_load_that_fails_inside_the_step(
    rig: VllmRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Without ``load`` in front, the failure happens in the step, where it would end the engine."""
    make(kind, tmp_path / kind)
    one = version("mark_bad_v1", tmp_path / kind)

    async def not_loaded(_: Version) -> None:
        return None

    healthy = job(rig, PROMPT, rig.versions[0], max_tokens=40, ignore_eos=True)
    failing = job(rig, PROMPT, one)

    async def both() -> tuple[list[str], BaseException | None]:
        with monkeypatch.context() as patch:
            patch.setattr(rig.engine, "load", not_loaded)
            running = asyncio.create_task(collect(rig, healthy))
            (failure,) = await asyncio.gather(collect(rig, failing), return_exceptions=True)
            return whole(await running).texts, failure  # type: ignore[return-value]

    texts, failure = rig.run(both())
    assert isinstance(failure, AdapterFailed)
    assert says(texts[0]) == rig.words[0]
    assert rig.engine.alive
    with pytest.raises(AdapterFailed):
        rig.run(rig.engine.load(one))
    assert rig.run(collect(rig, job(rig, PROMPT, None)))[-1].finished


def test_one_id_is_one_content(rig: VllmRig) -> None:
    """What decides is the id: two versions never share one, nor a name."""
    first, second = (again(rig.versions[0]), again(rig.versions[1]))
    assert first.int_id != second.int_id
    assert first.name != rig.versions[0].name


def test_a_poisoned_cache_is_healed(rig: VllmRig, tmp_path: Path) -> None:
    reference = text(rig, job(rig, PROMPT, None, salt="before"))
    heals = rig.engine.heals  # type: ignore[attr-defined]
    make("nan_f32", tmp_path / "nan")
    one = version("mark_nan_v1", tmp_path / "nan")
    for _ in range(3):
        with pytest.raises((Unavailable, AdapterFailed)):
            rig.run(collect(rig, job(rig, PROMPT, one)))
        rig.run(asyncio.sleep(0.5))
    assert rig.engine.heals > heals  # type: ignore[attr-defined]
    # It corrupts again and again: it is given up, and costs nobody anything any more.
    with pytest.raises(AdapterFailed):
        rig.run(collect(rig, job(rig, PROMPT, one)))

    jobs = [job(rig, PROMPT, None, salt=f"after{n}") for n in range(6)]

    async def after() -> list[object]:
        return await asyncio.gather(*(collect(rig, one) for one in jobs), return_exceptions=True)

    answers = [a for a in rig.run(after()) if not isinstance(a, ServingError)]
    assert len(answers) == 6
    assert {whole(a).texts[0] for a in answers} == {reference}  # type: ignore[arg-type]
    assert says(text(rig, job(rig, PROMPT, rig.versions[0]))) == rig.words[0]
