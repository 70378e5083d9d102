"""What the doctor says of GPUs, from what NVML says of them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from python_backend.nvml import Device, Inventory, Nvml
from tests.unit.tools.doctor.house import CUDA, GIB, bad, facts, inventory, only, settings
from tools.doctor.finding import Result
from tools.doctor.machine import visible


def test_what_is_gathered() -> None:
    found = inventory("four_nvlink")
    assert (found.driver, found.cuda, found.reason) == ("580.65.06", (13, 0), "")
    assert [device.index for device in found.devices] == [0, 1, 2, 3]
    assert found.devices[1].linked == (0, 2, 3)
    turing = inventory("turing").devices[0]
    assert turing == Device(
        0, "Tesla T4", (7, 5), 15 * GIB, 15 * GIB - (600 << 20), mig=False, linked=()
    )
    assert inventory("mixed").devices[0].mig
    assert inventory("none") == Inventory(reason="NVML: NvmlError: Driver Not Loaded")


def test_what_is_gathered_of_a_library_that_knows_little() -> None:
    bare = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
    )
    assert Nvml(lambda: bare).inventory() == Inventory((Device(0, "unknown"), Device(1, "unknown")))


@pytest.mark.parametrize(
    ("machine", "engine", "result", "cure"),
    [
        ("pascal", {}, Result.FAILURE, "Turing or newer"),
        ("volta", {"dtype": "bfloat16"}, Result.FAILURE, "float16"),
        ("volta", {"dtype": "float16"}, Result.WARNING, "every adapter a slot"),
        ("turing", {"dtype": "bfloat16"}, Result.FAILURE, "float16"),
        ("turing", {}, Result.WARNING, "float16"),
        ("turing", {"dtype": "float16"}, Result.OK, ""),
        ("ampere", {"dtype": "bfloat16"}, Result.OK, ""),
        ("hopper", {}, Result.OK, ""),
    ],
)
def test_architectures(machine: str, engine: dict[str, Any], result: Result, cure: str) -> None:
    finding = only(facts(machine, engine), "gpu-architecture")
    assert finding.result is result
    assert cure in finding.cure


@pytest.mark.parametrize(
    ("machine", "built_for", "result"),
    [
        ("ampere_old_driver", (12, 8), Result.FAILURE),
        ("ampere", (12, 8), Result.ADVICE),
        ("ampere", (12, 4), Result.OK),
        ("ampere", (13, 0), Result.FAILURE),
        ("hopper", (12, 8), Result.OK),
        ("hopper", (13, 0), Result.OK),
    ],
)
def test_drivers(machine: str, built_for: tuple[int, int], result: Result) -> None:
    versions = dataclasses.replace(CUDA, torch_cuda=built_for)
    assert only(facts(machine, versions=versions), "driver").result is result


@pytest.mark.parametrize(("driver", "result"), [("535.1", Result.OK), ("470.57", Result.FAILURE)])
def test_a_driver_that_tells_no_cuda_version(driver: str, result: Result) -> None:
    gpus = dataclasses.replace(inventory("ampere"), driver=driver, cuda=None)
    assert only(facts(gpus=gpus), "driver").result is result


@pytest.mark.parametrize(
    ("machine", "engine", "expected"),
    [
        ("four_nvlink", {"tensor_parallel_size": 4}, {}),
        (
            "four_nvlink",
            {"tensor_parallel_size": 4, "disable_custom_all_reduce": True},
            {"engine.disable_custom_all_reduce": "remove"},
        ),
        (
            "four_pcie",
            {"tensor_parallel_size": 4},
            {"engine.disable_custom_all_reduce": "set engine.disable_custom_all_reduce: true"},
        ),
        ("four_pcie", {"tensor_parallel_size": 4, "disable_custom_all_reduce": True}, {}),
        # vLLM's own kernel works between two, NVLink or not.
        ("four_pcie", {"tensor_parallel_size": 2}, {"engine.tensor_parallel_size": "each group"}),
        ("hopper", {"tensor_parallel_size": 2}, {"engine.tensor_parallel_size": "size: 1"}),
        ("hopper", {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}, {}),
        ("four_pcie", {}, {"engine.tensor_parallel_size": "CUDA_VISIBLE_DEVICES"}),
    ],
)
def test_several_gpus(machine: str, engine: dict[str, Any], expected: dict[str, str]) -> None:
    names = ("engine.tensor_parallel_size", "engine.disable_custom_all_reduce", "nccl")
    found = {f.check: f.cure for f in bad(facts(machine, engine)) if f.check in names}
    assert found.keys() == expected.keys()
    assert all(text in found[name] for name, text in expected.items())


def test_nccl_and_parts_of_gpus() -> None:
    two = {"tensor_parallel_size": 2}
    without = dataclasses.replace(CUDA, nccl="")
    assert [f.result for f in bad(facts("four_pcie", two, versions=without), "nccl")] == [
        Result.FAILURE
    ]
    assert bad(facts("four_pcie", versions=without), "nccl") == []
    assert "MIG" in bad(facts("mixed", two), "nccl")[0].reason
    assert "different kinds" in bad(facts("mixed", two), "gpu-architecture")[0].reason


def test_three_workers_for_32_heads() -> None:
    found = facts("four_nvlink", {"tensor_parallel_size": 3})
    assert "32 heads" in bad(found, "engine.tensor_parallel_size")[-1].reason
    assert "size: 2" in bad(found, "engine.tensor_parallel_size")[-1].cure


def test_no_gpu() -> None:
    cpu = dataclasses.replace(CUDA, vllm_cpu=True, torch_cuda=None)
    assert only(facts("none"), "gpu").result is Result.FAILURE
    assert only(facts("none", versions=cpu), "gpu").result is Result.ADVICE
    assert only(facts("hopper", versions=cpu), "gpu").result is Result.WARNING
    assert only(facts("none", has_gpu=True), "gpu").result is Result.WARNING


def test_memory_of_a_gpu() -> None:
    assert only(facts("ampere"), "memory").result is Result.OK
    busy = only(facts("ampere_busy"), "memory")
    assert (busy.result, busy.cure.endswith("engine.gpu_memory_utilization: 0.37")) == (
        Result.FAILURE,
        True,
    )
    # 0.37 of 80 GiB are free, and what then is too small for the plan is said as well.
    small = only(facts("ampere_busy", {"gpu_memory_utilization": 0.3}), "memory")
    assert (small.result, "tools plan" in small.cure) == (Result.WARNING, True)
    limited = facts("ampere", settings=settings(memory_limit_bytes=20 * GIB))
    assert only(limited, "memory").result is Result.FAILURE


def test_a_machine_with_all_it_needs() -> None:
    assert {f.check for f in bad(facts("hopper"))} <= {"adapters", "signatures"}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("2,0", [2, 0]),
        ("1", [1]),
        ("1,7,2", [1]),
        ("-1", []),
        ("", []),
        ("GPU-4f", [0, 1, 2, 3]),
    ],
)
def test_visible_devices(text: str, left: list[int]) -> None:
    found = visible(inventory("four_pcie"), {"CUDA_VISIBLE_DEVICES": text})
    assert [device.index for device in found.devices] == left
