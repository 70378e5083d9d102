"""The engine's arguments: what vLLM would refuse, and what would serve better."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from python_backend import memory_plan
from tools.doctor.checks.memory import plan, utilization
from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, advice, failure, few, ok, warning

#: Above it nothing is left for CUDA graphs and what other libraries take; below the second one
#: most of a GPU lies idle.
MOST_UTILIZATION, LEAST_UTILIZATION = 0.95, 0.5


def arguments(facts: Facts) -> Iterator[Finding]:
    """Whether they are vLLM's, and what this project refuses."""
    if facts.settings is None:
        return
    if facts.engine_problem:
        yield failure("engine", facts.engine_problem, "correct the section engine")
    known = facts.engine_names
    strangers = sorted(facts.engine.keys() - known) if known else []
    for name in strangers:
        near = difflib.get_close_matches(name, known or (), 1)
        cure = f"did you mean {near[0]}?" if near else "remove it"
        yield failure("engine", f"engine.{name} is no argument of this vLLM", cure)
    if not facts.engine_problem and not strangers:
        yield ok("engine", "vLLM takes every argument" if known else "vLLM was not asked")


def gpu_memory_utilization(facts: Facts) -> Iterator[Finding]:
    """Neither all of a GPU nor a part that nobody else uses."""
    name, share = "engine.gpu_memory_utilization", utilization(facts)
    if not facts.on_gpu or facts.settings is None:
        return
    given = facts.engine.get("gpu_memory_utilization")
    if given is not None and given != share:
        yield failure(name, f"{given!r} is no share above 0 and up to 1", f"set {name}: 0.9")
    elif "kv_cache_memory_bytes" in facts.engine and "gpu_memory_utilization" in facts.engine:
        yield advice(name, "kv_cache_memory_bytes decides instead of it", "remove one of them")
    elif share > MOST_UTILIZATION:
        yield warning(name, f"{share}: CUDA graphs and fragments find no room", f"set {name}: 0.9")
    elif share < LEAST_UTILIZATION:
        yield advice(
            name, f"{share}: most of the GPU stays empty", f"set {name}: 0.9, unless it is shared"
        )
    else:
        yield ok(name, f"{share}")


def max_num_seqs(facts: Facts) -> Iterator[Finding]:
    """Room in the KV cache for as many sequences, and slots that can all be used."""
    name, seats = "engine.max_num_seqs", facts.number("max_num_seqs", 0)
    settings = facts.settings
    if settings is None or not seats:
        return
    slots, fine = facts.number("max_loras", 4), True
    if slots > seats:
        fine = False
        yield advice(
            name, f"{slots} slots for {seats} sequences: some are never used", "lower max_loras"
        )
    tokens = _kv_tokens(facts)
    if tokens is not None and tokens < seats * settings.limits.max_tokens:
        fine = False
        yield advice(
            name,
            f"the KV cache holds {tokens} tokens: {seats} answers of limits.max_tokens "
            f"({settings.limits.max_tokens}) would be put off and begun anew",
            f"lower it to {max(1, tokens // settings.limits.max_tokens)}, or limits.max_tokens, "
            "or raise kv_cache_memory_bytes",
        )
    if fine:
        yield ok(name, f"{seats}")


def _kv_tokens(facts: Facts) -> int | None:
    shape, kv_bytes = facts.model.shape, facts.number("kv_cache_memory_bytes", 0)
    if shape is None:
        return None
    if kv_bytes:
        return kv_bytes // shape.token_bytes(facts.tp)
    if facts.on_gpu and facts.used and facts.used[0].total_bytes:
        try:
            return plan(facts, int(utilization(facts) * facts.used[0].total_bytes)).kv_tokens
        except memory_plan.PlanError:
            return None
    return None


def max_model_len(facts: Facts) -> Iterator[Finding]:
    """Given, not above the model's own, and not filled by one answer."""
    name, given = "engine.max_model_len", facts.number("max_model_len", 0)
    settings = facts.settings
    if settings is None or facts.model.config is None:
        return
    most = facts.model.config.get("max_position_embeddings")
    if not given:
        yield advice(
            name,
            f"not set: the model's own ({most or 'unknown'}), which the KV cache must hold once",
            f"set {name} to the longest request that is meant",
        )
    elif isinstance(most, int) and given > most and not _stretched(facts.model.config):
        yield warning(
            name,
            f"{given} is above the model's {most}: vLLM does not start unless "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN is set, and what is longer is answered badly",
            f"set {name}: {most}",
        )
    elif settings.limits.max_tokens >= given:
        yield advice(
            name,
            f"an answer of limits.max_tokens ({settings.limits.max_tokens}) leaves no room for a "
            f"prompt in {given}: it ends earlier",
            "lower limits.max_tokens or raise max_model_len",
        )
    else:
        yield ok(name, f"{given} of the model's {most or 'unknown'}")


def _stretched(config: Mapping[str, Any]) -> bool:
    """Whether the positions are scaled, so that there may be more of them than were trained."""
    # `rope_scaling` before transformers 5, `rope_parameters` since.
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = found.get("rope_type", found.get("type", "default"))
    return bool(kind != "default")


def heads(facts: Facts) -> Iterator[Finding]:
    """tensor_parallel_size must divide the model's heads."""
    shape = facts.model.shape
    if shape is not None and shape.heads % facts.tp:
        fits = [n for n in (1, 2, 4, 8) if n <= facts.tp and shape.heads % n == 0]
        yield failure(
            "engine.tensor_parallel_size",
            f"{facts.tp} does not divide the model's {shape.heads} heads",
            f"set tensor_parallel_size: {fits[-1]}",
        )


def max_lora_rank(facts: Facts) -> Iterator[Finding]:
    """Large enough for every adapter, and no larger: each slot is allocated whole."""
    name, given = "engine.max_lora_rank", facts.number("max_lora_rank", 16)
    ranks, settings = facts.ranks, facts.settings
    if not ranks or settings is None:
        return
    largest = max(ranks.values())
    above = sorted(lora_id for lora_id, rank in ranks.items() if rank > given)
    try:
        fits = memory_plan.slot_rank(largest)
    except memory_plan.PlanError as error:
        yield failure(name, str(error), "train with a lower rank")
        return
    if above:
        yield warning(
            name, f"{given}, and {few(above)} have more: they are refused", f"set {name}: {fits}"
        )
    elif given > fits:
        yield advice(
            name,
            f"{given}, and no adapter has more than {largest}: slots are larger than needed",
            f"set {name}: {fits}, unless mixtures (whose ranks add up) or larger ones are to come",
        )
    else:
        yield ok(name, f"{given}, the largest adapter has {largest}")


def enforce_eager(facts: Facts) -> Iterator[Finding]:
    """CUDA graphs make decoding faster; on a CPU there are none with LoRA."""
    if not facts.on_gpu or facts.settings is None:
        return
    name = "engine.enforce_eager"
    if facts.engine.get("enforce_eager"):
        yield advice(
            name,
            "without CUDA graphs every step is launched kernel by kernel",
            f"set {name}: false; it starts later and takes some memory",
        )
    else:
        yield ok(name, "CUDA graphs are used")
