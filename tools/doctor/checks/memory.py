"""Whether base model, KV cache and slots fit the memory there is, by the memory plan."""

from __future__ import annotations

import math
from collections.abc import Iterator

from python_backend import memory_plan
from python_backend.memory_plan import PlanError
from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, ok, size, warning

#: vLLM's own default (vllm/config/cache.py of 0.32; 0.90 in older ones).
UTILIZATION = 0.92
#: Share of a machine's memory beyond which the kernel begins to kill: the plan's free tenth.
_MOST = memory_plan.BASE_SHARE + memory_plan.ADAPTER_SHARE


def memory(facts: Facts) -> Iterator[Finding]:
    """Free memory against what the engine will take."""
    if facts.settings is None or not facts.engine:
        return
    if facts.model.shape is None:
        if facts.model.shape_problem:
            yield advice(
                "memory",
                f"it cannot be planned: {facts.model.shape_problem}",
                "watch lora_memory_bytes on the first start",
            )
        return
    yield from (_devices(facts) if facts.on_gpu else _host(facts))


def utilization(facts: Facts) -> float:
    """gpu_memory_utilization, as given, or as vLLM has it where what is given is no such share."""
    try:
        share = float(facts.engine.get("gpu_memory_utilization") or UTILIZATION)
    except (TypeError, ValueError):
        return UTILIZATION
    return share if 0 < share <= 1 else UTILIZATION


def _devices(facts: Facts) -> Iterator[Finding]:
    share = utilization(facts)
    limit = facts.settings.memory_limit_bytes if facts.settings else None
    for device in facts.used:
        total, free = device.total_bytes, device.free_bytes
        if total is None or free is None:
            yield warning(
                "memory", f"GPU {device.index} does not tell its memory", "look with nvidia-smi"
            )
            continue
        wanted = limit or int(share * total)
        text = f"GPU {device.index}: {size(free)} of {size(total)} are free"
        if free < wanted:
            # vLLM refuses to start then (gpu_worker.py: free memory below the utilization).
            yield failure(
                "memory",
                f"{text}; the engine wants {size(wanted)}",
                "end what holds the rest (nvidia-smi), or set engine.gpu_memory_utilization: "
                f"{math.floor(free / total * 100) / 100}",
            )
            continue
        yield _planned(facts, wanted, text, refused=limit is not None)


def _planned(facts: Facts, wanted: int, text: str, *, refused: bool) -> Finding:
    try:
        found = plan(facts, wanted)
    except PlanError as error:
        folder = facts.engine.get("model")
        cure = f"python -m tools plan --model {folder} --memory {wanted} finds arguments that fit"
        if refused:
            return failure("memory", f"{text}; memory_limit_bytes is too small: {error}", cure)
        return warning("memory", f"{text}; no plan of 60 % base, 30 % slots: {error}", cure)
    return ok(
        "memory",
        f"{text}; weights {size(found.weight_bytes)}, KV cache {size(found.kv_bytes)} "
        f"({found.kv_tokens} tokens), {found.max_loras} slots {size(found.adapter_bytes)}",
    )


def plan(facts: Facts, memory_bytes: int) -> memory_plan.Plan:
    """The plan for workers with so many bytes each.

    Raises:
        PlanError: it does not fit; the text names the number to change.
    """
    shape = facts.model.shape
    if shape is None:
        raise PlanError(facts.model.shape_problem or "the model's shape is not known")
    kv_bytes = facts.number("kv_cache_memory_bytes", 0)
    return memory_plan.plan(
        shape,
        memory_bytes,
        rank=facts.number("max_lora_rank", 16),
        max_loras=facts.number("max_loras", 4),
        kv_bytes=kv_bytes or None,
        max_model_len=facts.number("max_model_len", 1024),
        tp=facts.tp,
        weight_bytes=sum(facts.model.weights.values()) or None,
    )


def _host(facts: Facts) -> Iterator[Finding]:
    """On a CPU nothing is set aside: what the parts take together must be there."""
    shape, settings, free = facts.model.shape, facts.settings, facts.machine.memory_free_bytes
    there = facts.machine.memory_bytes
    if shape is None or settings is None:
        return
    weights = sum(facts.model.weights.values()) or shape.weight_bytes()
    kv = facts.number("kv_cache_memory_bytes", 0)
    slots = facts.number("max_loras", 4) * shape.slot_bytes(facts.number("max_lora_rank", 16))
    # What adapters may take at most, and what lies in the root at most.
    held = min(settings.tiers.host_bytes, sum(f.size_bytes for f in facts.adapters.folders))
    parts = (("weights", weights), ("KV cache", kv), ("slots", slots), ("adapters", held))
    text = ", ".join(f"{name} {size(count)}" for name, count in parts if count)
    if settings.memory_limit_bytes is not None:
        yield _planned(facts, settings.memory_limit_bytes, text, refused=True)
    if there is None or free is None:
        return
    need = weights + kv + slots + held
    text = f"{size(free)} of {size(there)} are free; {text}"
    cure = "lower kv_cache_memory_bytes, max_loras or tiers.host_bytes, or add memory"
    if need > there:
        yield failure("memory", text, cure)
    elif need > _MOST * free:
        yield warning("memory", f"{text}: less than a tenth is left", cure)
    elif not kv:
        yield advice(
            "memory",
            f"{text}; the KV cache's size is a share of the machine's memory",
            "set engine.kv_cache_memory_bytes",
        )
    else:
        yield ok("memory", text)
