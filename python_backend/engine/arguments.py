"""vLLM's arguments and environment, from settings and from what the machine is."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from python_backend.auto_settings import MAX_CANDIDATES

WORKER_EXTENSION = "python_backend.engine.observe.ObservedWorkerExtension"
UNOBSERVED_EXTENSION = "python_backend.engine.worker.LoraWorkerExtension"
#: Ranks vLLM allocates slots for; an adapter's own rank is free below the chosen one.
ALLOWED_MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: Arguments that this project decides.
_OURS = frozenset({"worker_extension_cls", "enable_lora"})


class EngineStartError(Exception):
    """The engine cannot start; the text names the argument and the cure."""


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA or AMD device, without importing torch."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))


def choose_devices(numbers: str) -> None:
    """Lets CUDA in this process and those it starts see these GPUs alone; before it is imported.

    Args:
        numbers: such as ``0,1``, among those that are visible now; empty: all of them.

    Raises:
        EngineStartError: one is not among them.
    """
    if not numbers:
        return
    chosen = numbers.split(",")
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        every = visible.split(",")
        if any(int(number) >= len(every) for number in chosen):
            raise EngineStartError(
                f"DEVICES is {numbers}, but CUDA_VISIBLE_DEVICES shows {len(every)} of them; "
                "correct the group's gpus in fleet.yaml and render again"
            )
        chosen = [every[int(number)] for number in chosen]
    # As nvidia-smi numbers them, not by speed.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)


def _numa_nodes() -> int:
    return sum(1 for _ in Path("/sys/devices/system/node").glob("node[0-9]*"))


def prepare_process(arguments: dict[str, Any], cores: int, *, gpu: bool) -> None:
    """Environment that vLLM reads at import; values set by the operator stand.

    On a CPU the workers have ``cores - 1`` threads: a thread fewer than cores leaves one for
    tritonserver and this process, without which every step waits for the slowest thread
    (measured: p90 of a step 6.8 s against 0.15 s with two threads on two busy cores).
    """
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TOKENIZERS_PARALLELISM": "false",
        # Counts NaN in the logits, by which a poisoned KV cache is noticed.
        "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
    }
    if not gpu:
        # vLLM compiles small helpers at their first use: the first request for logprobs would
        # stall everyone's step (measured: 15 s) and fail where there is no C++ compiler.
        defaults["TORCHDYNAMO_DISABLE"] = "1"
        count = workers(arguments)
        defaults["OMP_NUM_THREADS"] = str(max(1, (cores - 1) // count))
        if count == 1:
            # Lets the CPU worker live inside EngineCore, as on one GPU: a process and its imports
            # less. Several workers need processes of their own.
            defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        elif _numa_nodes() < count:
            # vLLM binds each worker to a node of its own and does not start with fewer nodes.
            defaults["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def workers(arguments: dict[str, Any]) -> int:
    """Workers that an engine with these arguments has."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size")
    return math.prod(int(arguments.get(size) or 1) for size in sizes)


def engine_arguments(
    raw: dict[str, Any], known_adapters: int, reserve_seats: int = 0, *, observed: bool = True
) -> dict[str, Any]:
    """vLLM engine arguments from settings.

    Args:
        raw: the merged ``model.json`` and ``engine:`` section.
        known_adapters: adapters there are at start. The host cache gets room for all of them, for
            as many again to come, and for what is in slots or on its way there: vLLM drops the
            least recently used at its limit and would then read it again inside a step.
        reserve_seats: sequences on top of ``max_num_seqs`` that admission gives away by itself.
        observed: whether the workers say what they do.

    Raises:
        EngineStartError: an argument is missing or contradicts this project.
    """
    if not raw.get("model"):
        raise EngineStartError(
            "engine.model is not set: name the base model in serving.yaml (engine: model) "
            "or in vllm_lora/1/model.json"
        )
    for name in _OURS & raw.keys():
        if str(raw[name]).lower() != "true" or name != "enable_lora":
            raise EngineStartError(f"engine.{name} is set by this project; remove it")
    if raw.get("fully_sharded_loras"):
        raise EngineStartError("engine.fully_sharded_loras is not supported; remove it")
    max_rank = raw.get("max_lora_rank", 16)
    if max_rank not in ALLOWED_MAX_RANKS:
        allowed = ", ".join(map(str, ALLOWED_MAX_RANKS))
        raise EngineStartError(f"engine.max_lora_rank is {max_rank!r}; vLLM takes {allowed}")
    arguments = {"max_loras": 4, **raw, "enable_lora": True, "max_lora_rank": max_rank}
    arguments["worker_extension_cls"] = WORKER_EXTENSION if observed else UNOBSERVED_EXTENSION
    if (most := int(raw.get("max_logprobs", 20))) >= 0:
        # For the mixing of distributions; what callers may ask for is `limits.logprobs`.
        arguments["max_logprobs"] = max(most, MAX_CANDIDATES)
    if "max_num_seqs" in raw:
        arguments["max_num_seqs"] = int(raw["max_num_seqs"]) + reserve_seats
    room = 2 * int(arguments["max_loras"]) + 2 * known_adapters + 64
    arguments["max_cpu_loras"] = max(room, int(raw.get("max_cpu_loras") or 0))
    return arguments
