from __future__ import annotations

import os
from typing import Any

import pytest

from python_backend.engine import arguments
from python_backend.engine.arguments import EngineStartError, engine_arguments, prepare_process


def test_what_this_project_adds() -> None:
    assert engine_arguments({"model": "m"}, 0) == {
        "model": "m",
        "enable_lora": True,
        "max_loras": 4,
        "max_lora_rank": 16,
        "max_cpu_loras": 72,
        "max_logprobs": 4096,
        "worker_extension_cls": "python_backend.engine.observe.ObservedWorkerExtension",
    }


def test_settings_are_passed_on_and_not_changed() -> None:
    raw = {"model": "m", "dtype": "bfloat16", "max_loras": 2, "max_lora_rank": 64, "seed": 1}
    before = dict(raw)
    found = engine_arguments(raw, 3)
    assert raw == before
    assert {name: found[name] for name in raw} == raw


@pytest.mark.parametrize(
    ("raw", "known", "expected"),
    [
        ({}, 0, 72),
        ({}, 100, 272),  # all there are, as many to come, twice the slots, and 64
        ({"max_loras": 500}, 10, 1084),
        ({"max_cpu_loras": 10}, 0, 72),  # too small a cache reads from disk inside the step
        ({"max_cpu_loras": 5_000}, 10, 5_000),
        ({"max_cpu_loras": None}, 10, 92),
    ],
)
def test_room_in_the_host_cache(raw: dict[str, Any], known: int, expected: int) -> None:
    assert engine_arguments({"model": "m", **raw}, known)["max_cpu_loras"] == expected


@pytest.mark.parametrize("rank", arguments.ALLOWED_MAX_RANKS)
def test_ranks_that_vllm_takes(rank: int) -> None:
    assert engine_arguments({"model": "m", "max_lora_rank": rank}, 0)["max_lora_rank"] == rank


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({}, "engine.model is not set"),
        ({"model": ""}, "engine.model is not set"),
        ({"model": None}, "engine.model is not set"),
        ({"model": "m", "max_lora_rank": 24}, "engine.max_lora_rank is 24"),
        ({"model": "m", "max_lora_rank": "16"}, "engine.max_lora_rank is '16'"),
        ({"model": "m", "max_lora_rank": 0}, "engine.max_lora_rank is 0"),
        ({"model": "m", "worker_extension_cls": "x.Y"}, "engine.worker_extension_cls"),
        ({"model": "m", "worker_extension_cls": True}, "engine.worker_extension_cls"),
        ({"model": "m", "enable_lora": False}, "engine.enable_lora"),
        ({"model": "m", "fully_sharded_loras": True}, "engine.fully_sharded_loras"),
    ],
)
def test_what_contradicts_this_project(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineStartError, match=named):
        engine_arguments(raw, 0)


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_enable_lora_may_be_said(value: Any) -> None:
    """The official backend's examples say it, as a word too."""
    assert engine_arguments({"model": "m", "enable_lora": value}, 0)["enable_lora"] is True


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty environment in the place of the real one."""
    found: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", found)
    return found


def test_the_environment_of_a_cpu(environment: dict[str, str]) -> None:
    prepare_process({}, 4, gpu=False)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_one_core_is_one_thread(environment: dict[str, str]) -> None:
    prepare_process({}, 1, gpu=False)
    assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("size", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_several_workers_have_processes_of_their_own(
    environment: dict[str, str], size: str
) -> None:
    prepare_process({size: 2}, 4, gpu=False)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment


def test_a_gpu_keeps_its_threads_and_its_compiler(environment: dict[str, str]) -> None:
    prepare_process({}, 4, gpu=True)
    assert not {"OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE"} & environment.keys()
    assert environment["VLLM_COMPUTE_NANS_IN_LOGITS"] == "1"


def test_the_operators_values_stand(environment: dict[str, str]) -> None:
    environment["OMP_NUM_THREADS"] = "7"
    prepare_process({}, 4, gpu=False)
    assert environment["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(("given", "found"), [(5, 4096), (9000, 9000), (-1, -1)])
def test_logprobs_enough_for_the_mixing_of_distributions(given: int, found: int) -> None:
    arguments_found = engine_arguments({"model": "m", "max_logprobs": given}, 0)
    assert arguments_found["max_logprobs"] == found
