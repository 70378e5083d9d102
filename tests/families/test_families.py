"""Each family's adapters, through our validation and a live engine, against transformers and peft.

One engine a family. What the engine cannot apply wholly must be refused: an accepted adapter that
is applied in part shows in the log-probabilities.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.families import models, reference
from tests.families.runs import PROMPTS, TOKENS, Run, run

pytestmark = pytest.mark.families
#: In float32; measured differences are below 2e-5.
MAX_LOGPROB_ERROR = 1e-3
#: Left to ``make test-families``: what these add to the others is less than they cost.
_MORE = pytest.mark.thorough
#: Family, engine arguments.
FAMILIES = [
    pytest.param(("llama", {}), id="llama", marks=_MORE),
    pytest.param(("llama-tied", {}), id="llama-tied", marks=_MORE),
    pytest.param(
        ("llama-one-key", {"tensor_parallel_size": 2}), id="llama-two-workers", marks=_MORE
    ),
    pytest.param(("qwen2", {}), id="qwen2"),
    pytest.param(("qwen3", {}), id="qwen3", marks=_MORE),
    pytest.param(("deepseek-dense", {}), id="deepseek-dense"),
    pytest.param(("deepseek-whole-query", {}), id="deepseek-whole-query", marks=_MORE),
]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    name, engine = request.param
    return run(name, tmp_path_factory.mktemp(name), **engine)


def _bad(name: str) -> bool:
    return name.startswith("bad-")


def test_all_is_known_of_the_engine(family: Run) -> None:
    assert family.result["missing"] == []


def test_what_fits_is_accepted_and_nothing_else(family: Run) -> None:
    accepted = set(family.result["mixed"]) - {"base"}
    assert accepted == {name for name in family.folders if not _bad(name)}
    for name, refusal in family.result["refused"].items():
        assert _bad(name)
        assert refusal["reason"] == "unsupported_feature"
        assert "kv_b_proj" in refusal["sentence"]
        assert "latent attention" in refusal["sentence"]


def test_target_is_the_whole_model(family: Run) -> None:
    """Every linear layer that peft finds has the same shape in the engine, or is refused."""
    modules = family.result["modules"]
    for path, layer in family.base.named_modules():
        if type(layer).__name__ != "Linear" or path.endswith(("lm_head", "kv_b_proj")):
            continue
        assert modules[path] == [layer.in_features, layer.out_features, "linear"], path
    known = dict(family.base.named_modules())
    assert set(modules) <= set(known), "the engine calls a layer by a name that no adapter uses"
    for path, (rows, columns, kind) in modules.items():
        if kind != "linear":
            ends = sorted(known[path].weight.shape)
            assert sorted([rows, columns]) == ends == sorted([models.VOCABULARY, 128])


def agrees(model: Any, name: str, prompt: list[int], answer: dict[str, Any]) -> None:
    """The engine's answer is the one that the reference model gives."""
    best, logprobs, lead = reference.judge(model, prompt, answer["ids"])
    assert answer["ids"] == best, f"{name}, smallest lead {lead}"
    errors = zip(answer["logprobs"], logprobs, strict=True)
    assert max(abs(ours - theirs) for ours, theirs in errors) <= MAX_LOGPROB_ERROR


def test_answers_are_those_of_transformers(family: Run) -> None:
    """Base and adapters: in one batch, alone after switches, and read again after removal."""
    result = family.result
    for name in result["mixed"]:
        with reference.adapted(family.base, family.folders.get(name)) as model:
            answers = [
                *zip(PROMPTS, result["mixed"][name], strict=True),
                *zip(PROMPTS[:2], result["alone"][name], strict=True),
                *([(PROMPTS[0], result["again"][name])] if name != "base" else []),
            ]
            for prompt, answer in answers:
                assert len(answer["ids"]) == TOKENS
                agrees(model, name, prompt, answer)


def test_mixtures_are_the_dense_sum(family: Run) -> None:
    """The mixture that the engine runs, against W + Σ wᵢ·ΔWᵢ of transformers and peft."""
    for name, parts in family.mixtures.items():
        assert family.result["again"][name]["ids"] == family.result["fused"][name][0]["ids"]
        model = reference.mixture(family.base, family.folders, parts)
        for prompt, answer in zip(PROMPTS, family.result["fused"][name], strict=True):
            agrees(model, name, prompt, answer)
    if family.mixtures:
        base = [answer["ids"] for answer in family.result["mixed"]["base"]]
        said = {name: [a["ids"] for a in fused] for name, fused in family.result["fused"].items()}
        assert said["none"] == base
        assert base not in [said[name] for name in said if name != "none"]


def test_every_adapter_changes_the_answer(family: Run) -> None:
    """Else nothing above would tell an adapter from the base model."""
    mixed = family.result["mixed"]
    for number in range(len(PROMPTS)):
        answers = [tuple(mixed[name][number]["ids"]) for name in mixed]
        assert len(set(answers)) == len(answers)


def test_nothing_failed_inside_a_step(family: Run) -> None:
    assert family.result["state"]["failed"] == {}


@pytest.mark.parametrize(
    ("name", "architecture", "reason"),
    [
        ("qwen3-moe", "Qwen3MoeForCausalLM", "has grouped experts"),
        pytest.param("deepseek", "DeepseekV3ForCausalLM", "has grouped experts", marks=_MORE),
        pytest.param(
            "llama-small-heads", "LlamaForCausalLM", "failed at the first request", marks=_MORE
        ),
    ],
)
def test_refused_at_start(name: str, architecture: str, reason: str, tmp_path: Path) -> None:
    """vLLM's CPU build loads these, and its engine dies of the first request."""
    sentence = run(name, tmp_path).result["start_error"]
    assert architecture in sentence
    assert reason in sentence
