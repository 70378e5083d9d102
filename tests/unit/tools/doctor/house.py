"""Machines for the doctor: what NVML says of them stands in ``machines/``.

No machine with a GPU was at hand: the files hold, in NVML's own units, what data sheets and
NVIDIA's documentation say of such GPUs. They go through ``python_backend.nvml`` like a real
library's answers.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from python_backend.memory_plan import Model
from python_backend.nvml import Inventory, Nvml
from python_backend.settings import Settings
from tools.doctor.checks import run
from tools.doctor.facts import AdapterRoot, Facts, Link, Machine, ModelFiles, Versions
from tools.doctor.finding import Finding, Result

MACHINES = Path(__file__).parent / "machines"
GIB = 1 << 30
#: Llama-3.1-8B.
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "dtype": "bfloat16",
    "max_position_embeddings": 131072,
}
WEIGHTS = {"model.safetensors": Model.of(LLAMA).weight_bytes()}
ENGINE: dict[str, Any] = {
    "model": "/models/llama",
    "max_loras": 8,
    "max_lora_rank": 16,
    "max_model_len": 8192,
}
#: What the image has.
CUDA = Versions(
    (3, 12), "0.24.0", torch="2.11.0", torch_cuda=(12, 8), nccl="2.27.3", triton="26.07"
)
ROOMY = Machine(
    cores=32,
    memory_bytes=256 * GIB,
    memory_free_bytes=250 * GIB,
    shm_bytes=64 * GIB,
    shm_free_bytes=64 * GIB,
    open_files=1 << 20,
    links=(Link("eth0", 25_000),),
    state_free_bytes=1 << 40,
)


class NvmlError(Exception):
    """As pynvml's own."""


def library(name: str) -> Any:
    """``pynvml`` on one of the machines."""
    told = json.loads((MACHINES / f"{name}.json").read_text("utf-8"))

    def begin() -> None:
        if "error" in told:
            raise NvmlError(told["error"])

    def mig(handle: int) -> list[int]:
        found = told["gpus"][handle]["mig"]
        if found is None:
            raise NvmlError("Not Supported")
        return [found, found]

    def linked(one: int, other: int, _: int) -> int:
        return 0 if sorted((one, other)) in told["nvlink"] else 2

    def memory(handle: int) -> Any:
        gpu = told["gpus"][handle]
        return SimpleNamespace(total=gpu["total"], free=gpu["free"])

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        NVML_P2P_STATUS_OK=0,
        nvmlInit=begin,
        nvmlDeviceGetCount=lambda: len(told["gpus"]),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlSystemGetDriverVersion=lambda: told["driver"].encode(),
        nvmlSystemGetCudaDriverVersion_v2=lambda: told["cuda"],
        nvmlDeviceGetName=lambda handle: told["gpus"][handle]["name"],
        nvmlDeviceGetCudaComputeCapability=lambda handle: tuple(told["gpus"][handle]["capability"]),
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetMigMode=mig,
        nvmlDeviceGetP2PStatus=linked,
    )


def inventory(name: str) -> Inventory:
    """What is gathered of a machine's GPUs."""
    return Nvml(lambda: library(name)).inventory()


def settings(**sections: Any) -> Settings:
    """Settings as of a file, with these sections."""
    raw = {"adapters": {"root": "/adapters"}, "policy": "/policy.yaml", "state_dir": "/state"}
    return Settings.model_validate(raw | sections)


def facts(name: str = "hopper", engine: dict[str, Any] | None = None, **more: Any) -> Facts:
    """A machine that has all it needs, but for what is given."""
    model = ModelFiles(
        name="/models/llama",
        is_folder=True,
        config=LLAMA,
        weights=WEIGHTS,
        tokenizer=True,
        chat_template=True,
        shape=Model.of(LLAMA),
    )
    return dataclasses.replace(
        Facts(
            settings=settings(),
            engine=ENGINE | (engine or {}),
            gpus=inventory(name),
            has_gpu=name != "none",
            machine=ROOMY,
            versions=CUDA,
            model=model,
            adapters=AdapterRoot(),
        ),
        **more,
    )


def bad(found: Facts, check: str | None = None) -> list[Finding]:
    """The findings that are not ok, of one check or of all."""
    return [
        finding
        for finding in run(found)
        if finding.result is not Result.OK and check in (None, finding.check)
    ]


def only(found: Facts, check: str) -> Finding:
    """The one finding of that name."""
    (finding,) = (finding for finding in run(found) if finding.check == check)
    return finding
