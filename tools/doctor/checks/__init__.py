"""The checks, by name, in the order in which they are shown. Each is pure over the facts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tools.doctor.checks import adapters, configuration, engine, gpu, memory, model, system
from tools.doctor.checks import versions as version_checks
from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, warning

Check = Callable[[Facts], Iterator[Finding]]

#: What is said of a check that raised.
BROKEN = "this check cannot cope with what it found"
#: What ``--skip`` takes. A check may report under a narrower name.
CHECKS: dict[str, Check] = {
    "settings": configuration.settings,
    "policy": configuration.policy,
    "engine": engine.arguments,
    "python": version_checks.python,
    "vllm": version_checks.vllm,
    "triton": version_checks.triton,
    "gpu": gpu.presence,
    "gpu-architecture": gpu.architecture,
    "driver": gpu.driver,
    "parallel": gpu.parallel,
    "heads": engine.heads,
    "model": model.model,
    "tokenizer": model.tokenizer,
    "memory": memory.memory,
    "shm": system.shm,
    "ulimits": system.ulimits,
    "ports": system.ports,
    "state": system.state,
    "adapters": adapters.root,
    "adapter-names": adapters.names,
    "signatures": adapters.signatures,
    "network": adapters.network,
    "gpu-memory-utilization": engine.gpu_memory_utilization,
    "max-num-seqs": engine.max_num_seqs,
    "max-model-len": engine.max_model_len,
    "max-lora-rank": engine.max_lora_rank,
    "enforce-eager": engine.enforce_eager,
}


def run(facts: Facts, skip: Collection[str] = ()) -> list[Finding]:
    """Everything there is to say. A check that breaks is a finding, and stops no other."""
    found: list[Finding] = []
    for name, check in CHECKS.items():
        if name in skip:
            continue
        try:
            found += check(facts)
        except Exception as error:
            kind = type(error).__name__
            found.append(warning(name, f"{BROKEN} ({kind}: {error})", "look yourself; report it"))
    return found
