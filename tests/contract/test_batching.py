"""What only the real engine can get wrong: rows of one batch, and the prefix cache."""

from __future__ import annotations

import asyncio

import pytest

from python_backend.engine.base import Version
from python_backend.errors import InvalidArgument
from tests.contract.rigs import SLOTS, VllmRig, collect, job, says, text, whole

pytestmark = pytest.mark.server

PROMPTS = ("The capital of France is", "def add(a, b):", "Once upon a time there was a")


def together(rig: VllmRig, versions: list[Version | None]) -> list[str]:
    """One batch: every prompt with every version, base rows between the others."""
    jobs = [job(rig, prompt, version) for prompt in PROMPTS for version in versions]

    async def run() -> list[str]:
        steps = await asyncio.gather(*(collect(rig, one) for one in jobs))
        return [whole(one).texts[0] for one in steps]

    return rig.run(run())


def test_base_rows_beside_adapters_in_all_slots(vllm_rig: VllmRig) -> None:
    """vLLM's own CPU kernels answer a base row with the adapter of the last slot."""
    rig = vllm_rig
    alone = [text(rig, job(rig, prompt, None)) for prompt in PROMPTS]
    found = together(rig, [None, *rig.versions])
    state = rig.run(rig.engine.state())
    assert sorted(filter(None, state["slots"])) == [v.int_id for v in rig.versions]
    assert len(state["slots"]) == SLOTS == len(rig.versions)
    assert found[0::3] == alone
    for position, word in enumerate(rig.words, start=1):
        assert [says(answer) for answer in found[position::3]] == [word] * len(PROMPTS)


def test_base_alone_with_all_slots_full(vllm_rig: VllmRig) -> None:
    rig = vllm_rig
    together(rig, [*rig.versions])
    full = [text(rig, job(rig, prompt, None)) for prompt in PROMPTS]
    for version in rig.versions:
        assert rig.run(rig.engine.unload(version.int_id)) is True
    assert rig.run(rig.engine.resident()) == ()
    assert [text(rig, job(rig, prompt, None)) for prompt in PROMPTS] == full


@pytest.mark.parametrize("with_adapter", [False, True])
def test_departments_share_no_prefix_cache(vllm_rig: VllmRig, with_adapter: bool) -> None:
    rig = vllm_rig
    version = rig.versions[0] if with_adapter else None
    prompt = f"A long text {with_adapter} " + "one two three four five " * 16

    def cached(salt: str) -> int:
        found = rig.run(collect(rig, job(rig, prompt, version, salt=salt, max_tokens=1)))
        return whole(found).cached

    assert cached("salt of fin") == 0
    assert cached("salt of fin") >= 32
    assert cached("salt of svc") == 0
    assert cached("salt of svc") >= 32


def test_adapters_share_no_prefix_cache(vllm_rig: VllmRig) -> None:
    rig = vllm_rig
    prompt = "Another long text " + "six seven eight nine ten " * 16
    for version in (None, *rig.versions):
        found = rig.run(collect(rig, job(rig, prompt, version, max_tokens=1)))
        assert whole(found).cached == 0


def test_logprobs(vllm_rig: VllmRig) -> None:
    rig = vllm_rig
    (step,) = rig.run(collect(rig, job(rig, PROMPTS[0], None, max_tokens=3, logprobs=2)))
    only = step.sequences[0]
    assert only.logprobs is not None
    assert only.cumulative_logprob is not None and only.cumulative_logprob < 0


@pytest.mark.parametrize(
    "sampling",
    [{"structured_outputs": {"json": {"type": "nonsense"}}}, {"top_p": 7.0}, {"n": 0}],
)
def test_what_vllm_refuses(vllm_rig: VllmRig, sampling: dict[str, object]) -> None:
    rig = vllm_rig
    with pytest.raises(InvalidArgument):
        rig.run(collect(rig, job(rig, PROMPTS[0], None, **sampling)))
    assert rig.engine.alive
    assert rig.running() == 0


def test_guided_choice(vllm_rig: VllmRig) -> None:
    rig = vllm_rig
    guide = {"choice": ["violet", "orange"]}
    answer = text(rig, job(rig, "My favourite colour:", None, structured_outputs=guide))
    assert answer in guide["choice"]
