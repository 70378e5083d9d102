"""Sessions, and the mixing of their distributions: of the fake engine and of vLLM alike."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest

from python_backend.engine.base import Job, Step, Version
from python_backend.errors import AdapterFailed
from python_backend.fusion.lockstep import Stream, decode
from python_backend.fusion.mixing import Distribution
from python_backend.messages import EngineRequest
from tests.contract.rigs import Rig, VllmRig, collect, job

PROMPT = "The capital of France is"
KNOWN = 64


async def told(rig: Rig, wanted: Job, fed: list[tuple[int, ...]]) -> list[Distribution]:
    async with rig.engine.session(wanted, KNOWN) as session:
        return [await session.next(ids) for ids in fed]


def test_a_session_tells_what_may_come_next(rig: Rig) -> None:
    for version in (None, *rig.versions):
        wanted = job(rig, PROMPT, version)
        found = rig.run(told(rig, wanted, [wanted.token_ids, (7,), (8, 9)]))
        for part in found:
            assert len(set(part.ids.tolist())) == len(part.ids) >= 8
            assert np.all(part.ids >= 0) and np.all(part.ids < rig.info.vocabulary)
            assert np.all(part.logprobs <= 0) and np.exp(part.logprobs).sum() < 1.0 + 1e-6
    assert rig.running() == 0


def test_a_session_that_is_left_leaves_nothing(rig: Rig) -> None:
    async def leave() -> None:
        async def listen() -> None:
            wanted = streams_of([(rig.versions[0], 0.5), (None, 0.5)], max_tokens=200)
            async for _ in decode(rig.engine, rig.info, wanted, KNOWN):
                started.set()

        started = asyncio.Event()
        task = asyncio.create_task(listen())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(10):
            while rig.running():
                await asyncio.sleep(0.01)

    rig.run(leave())


def test_a_version_that_cannot_be_loaded_has_no_session(rig: Rig, tmp_path: Path) -> None:
    for version in rig.bad_versions(tmp_path):
        with pytest.raises(AdapterFailed):
            rig.run(told(rig, job(rig, PROMPT, version), [(1,)]))


def streams_of(
    parts: list[tuple[Version | None, float]],
    ids: tuple[int, ...] = (0, 1, 2, 3, 4),
    **sampling: object,
) -> list[Stream]:
    request = EngineRequest({"temperature": 0.0, "ignore_eos": True, **sampling}, stream=True)
    return [
        Stream(Job(f"mix{id(parts)}-{n}", ids, request, version, f"salt{n}"), weight)
        for n, (version, weight) in enumerate(parts)
    ]


def chances(step: Step) -> dict[int, float]:
    (found,) = json.loads(step.sequences[0].logprobs or "")
    return {int(token): math.exp(entry["logprob"]) for token, entry in found.items()}


def row(rig: Rig, ids: tuple[int, ...], version: Version | None) -> dict[int, float]:
    """A part's chances for the next token, by an ordinary request for log-probabilities."""
    request = EngineRequest({"max_tokens": 1, "temperature": 0.0, "logprobs": 2000})
    (step,) = rig.run(collect(rig, Job(f"row{id(ids)}", ids, request, version, "other")))
    return chances(step)


@pytest.mark.server
@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.1, 0.1, 0.8)])
def test_mixed_chances_are_the_hand_computed_ones(
    vllm_rig: VllmRig, shares: tuple[float, ...]
) -> None:
    prompt = vllm_rig.run(vllm_rig.engine.encode(PROMPT, special_tokens=True))
    parts = list(zip([*vllm_rig.versions, None], shares, strict=True))
    wanted = streams_of(parts, prompt, max_tokens=6, logprobs=10)

    async def answer() -> list[dict[int, float]]:
        steps = decode(vllm_rig.engine, vllm_rig.info, wanted, 256)
        return [chances(step) async for step in steps]

    prefix = prompt
    for mixed in vllm_rig.run(answer()):
        known = [(row(vllm_rig, prefix, version), share) for version, share in parts]
        for token, chance in mixed.items():
            by_hand = sum(share * part.get(token, 0.0) for part, share in known)
            assert chance == pytest.approx(by_hand, abs=1e-3)
        prefix = (*prefix, max(mixed, key=lambda token: mixed[token]))


@pytest.mark.server
def test_one_part_alone_is_that_part(vllm_rig: VllmRig) -> None:
    prompt = vllm_rig.run(vllm_rig.engine.encode(PROMPT, special_tokens=True))
    for version in (None, vllm_rig.versions[0]):
        request = EngineRequest({"temperature": 0.0, "max_tokens": 12})
        alone = Job(f"alone{version}", prompt, request, version, "a")
        (expected,) = vllm_rig.run(collect(vllm_rig, alone))

        async def mixed(alone: Job = alone) -> list[str]:
            steps = decode(vllm_rig.engine, vllm_rig.info, [Stream(alone, 1.0)], 64)
            return [step.sequences[0].text async for step in steps]

        assert vllm_rig.run(mixed()) == [expected.sequences[0].text]
