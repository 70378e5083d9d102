"""What the doctor says of the engine's arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.tools.doctor.house import GIB, LLAMA, facts, only
from tools.doctor.checks import BROKEN, run
from tools.doctor.facts import AdapterFolder, AdapterRoot
from tools.doctor.finding import Result

ONE = AdapterRoot(folders=(AdapterFolder("fin_risk_v1", 16, 1_000_000),))


def test_the_engines_arguments() -> None:
    known = frozenset({"model", "max_loras", "max_lora_rank", "max_model_len", "max_num_seqs"})
    finding = only(facts(engine={"max_num_seq": 8}, engine_names=known), "engine")
    assert (finding.result, finding.cure) == (Result.FAILURE, "did you mean max_num_seqs?")
    assert only(facts(engine_names=known), "engine").result is Result.OK
    assert only(facts(engine_problem="engine.model is not set"), "engine").result is Result.FAILURE


@pytest.mark.parametrize(
    ("engine", "check", "result", "cure"),
    [
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization", Result.FAILURE, "0.9"),
        ({"gpu_memory_utilization": "much"}, "gpu_memory_utilization", Result.FAILURE, "0.9"),
        ({"gpu_memory_utilization": 0.98}, "gpu_memory_utilization", Result.WARNING, "0.9"),
        ({"gpu_memory_utilization": 0.3}, "gpu_memory_utilization", Result.ADVICE, "0.9"),
        ({"gpu_memory_utilization": 0.9}, "gpu_memory_utilization", Result.OK, ""),
        (
            {"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": 32 * GIB},
            "gpu_memory_utilization",
            Result.ADVICE,
            "remove",
        ),
        ({"max_num_seqs": 64}, "max_num_seqs", Result.OK, ""),
        ({"max_num_seqs": 4}, "max_num_seqs", Result.ADVICE, "lower max_loras"),
        # 128 KiB a token: 4 GiB hold 32768.
        (
            {"max_num_seqs": 64, "kv_cache_memory_bytes": 4 * GIB},
            "max_num_seqs",
            Result.ADVICE,
            "lower it to 32",
        ),
        ({"max_model_len": None}, "max_model_len", Result.ADVICE, "longest request"),
        ({"max_model_len": 200_000}, "max_model_len", Result.WARNING, "131072"),
        ({"max_model_len": 1024}, "max_model_len", Result.ADVICE, "limits.max_tokens"),
        ({"max_lora_rank": 8}, "max_lora_rank", Result.WARNING, "max_lora_rank: 16"),
        ({"max_lora_rank": 64}, "max_lora_rank", Result.ADVICE, "max_lora_rank: 16"),
        ({"max_lora_rank": 16}, "max_lora_rank", Result.OK, ""),
        ({"enforce_eager": True}, "enforce_eager", Result.ADVICE, "false"),
        ({}, "enforce_eager", Result.OK, ""),
    ],
)
def test_advice_on_the_engine(
    engine: dict[str, Any], check: str, result: Result, cure: str
) -> None:
    finding = only(facts("hopper", engine, adapters=ONE), f"engine.{check}")
    assert finding.result is result
    assert cure in finding.cure


def test_a_model_that_stretches_its_positions() -> None:
    for key, kind, result in (
        ("rope_scaling", "yarn", Result.OK),
        ("rope_parameters", "yarn", Result.OK),
        ("rope_parameters", "default", Result.WARNING),
    ):
        config = LLAMA | {key: {"rope_type": kind}}
        model = dataclasses.replace(facts().model, config=config)
        found = facts(engine={"max_model_len": 200_000}, model=model)
        assert only(found, "engine.max_model_len").result is result


NUMBERS = ("max_loras", "max_lora_rank", "max_model_len", "max_num_seqs", "tensor_parallel_size")
ODD = st.none() | st.integers(-9, 1 << 40) | st.floats() | st.text(max_size=5) | st.lists(st.none())


@given(
    st.dictionaries(
        st.sampled_from((*NUMBERS, "dtype", "gpu_memory_utilization", "kv_cache_memory_bytes")), ODD
    ),
    st.sampled_from(("none", "volta", "turing", "hopper", "four_pcie", "mixed")),
)
@example(dict.fromkeys(NUMBERS, float("inf")), "hopper")
@example(dict.fromkeys((*NUMBERS, "gpu_memory_utilization"), float("nan")), "hopper")
def test_no_argument_breaks_a_check(engine: dict[str, Any], machine: str) -> None:
    assert [f for f in run(facts(machine, engine, adapters=ONE)) if BROKEN in f.reason] == []


def test_a_check_that_breaks_is_a_finding() -> None:
    broken = dataclasses.replace(facts().model, config={"max_position_embeddings": 1, "a": 2})
    broken = dataclasses.replace(broken, shape="no shape")  # type: ignore[arg-type]
    found = [f for f in run(facts(model=broken)) if BROKEN in f.reason]
    assert {f.check for f in found} == {"heads", "memory"}
