"""The memory plan and ``tools plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from python_backend.engine import fitting
from python_backend.engine.arguments import EngineStartError
from python_backend.memory_plan import Model, PlanError, budgets, plan, slot_rank
from tools.__main__ import app
from tools.plan.command import parse_bytes

SMOL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "dtype": "bfloat16",
    "tie_word_embeddings": True,
}
LLAMA_8B = SMOL | {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("dtype", "rank", "slots", "measured"),
    [
        ("bfloat16", 16, 2, 25_903_104),
        ("bfloat16", 16, 16, 207_224_832),
        ("bfloat16", 64, 2, 103_612_416),
        ("float32", 32, 3, 155_418_624),
    ],
)
def test_slots_are_as_large_as_was_measured(
    dtype: str, rank: int, slots: int, measured: int
) -> None:
    assert Model.of(SMOL, dtype).slot_bytes(rank) * slots == measured


def test_a_larger_model() -> None:
    model = Model.of(LLAMA_8B)
    assert model.slot_bytes(1) == pytest.approx(5.77e6, rel=0.001)
    assert model.weight_bytes() == pytest.approx(16.06e9, rel=0.001)
    assert model.token_bytes() == 131072
    assert model.slot_bytes(16, tp=2) < model.slot_bytes(16)


def test_the_shares() -> None:
    found = plan(Model.of(LLAMA_8B), 80 * GIB, rank=16)
    assert found.weight_bytes + found.kv_bytes <= 0.6 * 80 * GIB
    assert found.adapter_bytes <= 0.3 * 80 * GIB < found.adapter_bytes + found.slot_bytes
    assert found.max_lora_rank == 16
    assert plan(Model.of(LLAMA_8B), 80 * GIB, rank=16, fusion_rank=40).max_lora_rank == 64


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_loras": 30}, r"max_loras to at most 24"),
        ({"rank": 512}, r"max_lora_rank"),
        ({"rank": 513}, r"rank 513"),
        ({"kv_bytes": 700 * MIB}, r"kv_cache_memory_bytes to at most"),
        ({"kv_bytes": 5}, r"kv_cache_memory_bytes 5 holds no request"),
        ({"max_model_len": 100_000}, r"raise the memory to"),
        ({"weight_bytes": 2 * GIB}, r"raise the memory to"),
        ({"tp": 2}, r"tensor_parallel_size 2"),
    ],
)
def test_what_does_not_fit_names_the_number(options: dict[str, int], names: str) -> None:
    wanted = {"rank": 16, **options}
    with pytest.raises(PlanError, match=names):
        plan(Model.of(SMOL), 1000 * MIB, **wanted)  # type: ignore[arg-type]


@given(st.integers(1, 200), st.integers(1, 512))
def test_the_number_it_names_fits(memory_gib: int, rank: int) -> None:
    model = Model.of(SMOL)
    try:
        found = plan(model, memory_gib * GIB, rank=rank)
    except PlanError:
        assert model.slot_bytes(slot_rank(rank)) > 0.3 * memory_gib * GIB
        return
    assert plan(model, memory_gib * GIB, rank=rank, max_loras=found.max_loras) == found
    with pytest.raises(PlanError, match=f"at most {found.max_loras},"):
        plan(model, memory_gib * GIB, rank=rank, max_loras=found.max_loras + 1)


@pytest.mark.parametrize("change", [{"model_type": "mamba"}, {"dtype": "int4"}])
def test_models_without_a_formula(change: dict[str, str]) -> None:
    with pytest.raises(PlanError):
        Model.of(SMOL | change)
    with pytest.raises(PlanError, match="vocab_size"):
        Model.of({name: value for name, value in SMOL.items() if name != "vocab_size"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    return tmp_path


def test_the_engine_refuses_only_with_a_limit(folder: Path) -> None:
    arguments = {"model": str(folder), "max_loras": 4, "max_lora_rank": 16, "max_model_len": 1024}
    fitting.check(arguments, None)
    fitting.check(arguments, 1000 * MIB)
    with pytest.raises(EngineStartError, match=r"memory_limit_bytes is \d+: .*max_loras"):
        fitting.check(arguments | {"max_loras": 40}, 1000 * MIB)
    fitting.check({"model": "not/here", "max_loras": 1, "max_lora_rank": 8}, None)
    with pytest.raises(EngineStartError, match=r"config\.json"):
        fitting.check({"model": "not/here", "max_loras": 1, "max_lora_rank": 8}, GIB)


def test_the_command(folder: Path) -> None:
    command = ["plan", "--model", str(folder), "--memory", "1GiB", "--rank", "8"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["engine"]["max_lora_rank"] == 8
    assert json.loads(done.output)["shm_bytes"] == GIB
    done = CliRunner().invoke(app, [*command, "--json", "--shm-tier", "8GiB"])
    assert json.loads(done.output)["shm_bytes"] == 9 * GIB
    done = CliRunner().invoke(app, command)
    settings = yaml.safe_load(done.output)
    fitting.check({"model": str(folder), **settings["engine"]}, settings["memory_limit_bytes"])
    done = CliRunner().invoke(app, [*command, "--loras", "5000"])
    assert done.exit_code == 1
    assert "lower max_loras to at most" in done.output


def test_sizes() -> None:
    assert parse_bytes("80GiB") == 80 * GIB
    assert parse_bytes("1.5 GB") == 1_500_000_000
    assert parse_bytes("7") == 7
    for wrong in ("", "80 gigs", "-1GiB", "0", "GiB"):
        with pytest.raises(PlanError, match="no memory size"):
            parse_bytes(wrong)


def test_budgets_beside_the_slots() -> None:
    assert budgets(1000) == {"base": pytest.approx(600), "buffer": pytest.approx(100)}
    assert budgets(None) == {}
    assert [update.labels for update in fitting.budgets(1000)] == [
        (("pool", "base"), ("kind", "budget")),
        (("pool", "buffer"), ("kind", "budget")),
    ]
    assert fitting.budgets(None) == []
