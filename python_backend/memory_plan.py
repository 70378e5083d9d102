"""The memory plan: 60 % of the memory for the base model's weights and KV cache, 30 % for the
adapters' slots, 10 % left free. Pure: a model's configuration and numbers go in.

vLLM allocates all slots at its start, each of ``max_lora_rank`` in every layer that takes an
adapter, whatever the adapters' own ranks are. The formula is that of models built as Llama is
(``KINDS``); it is compared with the engine's own allocation, to the byte, by a contract test. With
tensor parallelism the parts that follow a split dimension are split; that was read, not run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from python_backend.engine.arguments import ALLOWED_MAX_RANKS

BASE_SHARE, ADAPTER_SHARE = 0.60, 0.30
#: ``model_type`` of the models whose layers the formula knows.
KINDS = ("llama", "mistral", "qwen2", "qwen3")
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}
_MIB = 1 << 20
#: Room in /dev/shm beside copies of adapters: buffers of Triton's Python backend (4 MiB a model,
#: more while long prompts are under way) and of vLLM's processes. An idle server holds 25 MiB, on a
#: CPU; with tensor parallelism nobody has measured it.
SHM_BUFFER_BYTES = 1 << 30


def budgets(limit_bytes: int | None) -> dict[str, float]:
    """Bytes of each part of a worker's memory; none where it has no limit."""
    if limit_bytes is None:
        return {}
    shares = {"base": BASE_SHARE, "buffer": 1 - BASE_SHARE - ADAPTER_SHARE}
    return {pool: share * limit_bytes for pool, share in shares.items()}


def shm_bytes(tier_bytes: int) -> int:
    """Bytes that /dev/shm has to hold, ``tier_bytes`` being the setting ``tiers.shm_bytes``."""
    return tier_bytes + SHM_BUFFER_BYTES


class PlanError(Exception):
    """There is no plan; the text names the number to change."""


@dataclasses.dataclass(frozen=True)
class Model:
    """What of a model counts for memory."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    dtype_bytes: int
    tied: bool

    @classmethod
    def of(cls, config: Mapping[str, Any], dtype: str = "auto") -> Model:
        """From a ``config.json``.

        Raises:
            PlanError: it is of a kind without a formula, or lacks a number.
        """
        kind = config.get("model_type")
        if kind not in KINDS:
            raise PlanError(f"model_type {kind!r} has no formula; there is one for {_list(KINDS)}")
        if dtype == "auto":
            dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
        if dtype not in _DTYPE_BYTES:
            raise PlanError(f"dtype {dtype!r} is not one of {_list(_DTYPE_BYTES)}")
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            return cls(
                layers=int(config["num_hidden_layers"]),
                hidden=hidden,
                heads=heads,
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                intermediate=int(config["intermediate_size"]),
                vocab=int(config["vocab_size"]),
                dtype_bytes=_DTYPE_BYTES[dtype],
                tied=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise PlanError(f"config.json lacks {error.args[0]}") from None

    def slot_bytes(self, rank: int, tp: int = 1) -> int:
        """Bytes of one slot on each worker, ``rank`` being ``max_lora_rank``."""
        kv = max(1, self.kv_heads // tp)
        split = 2 * (self.heads // tp) * self.head_dim + 2 * kv * self.head_dim
        split += 3 * (self.intermediate // tp)
        # vLLM rounds the vocabulary up in lm_head; both ends are whole on each worker.
        ends = self.vocab + math.ceil(self.vocab / 64) * 64 + 2 * self.hidden
        return self.dtype_bytes * rank * (self.layers * (7 * self.hidden + split) + ends)

    def weight_bytes(self) -> int:
        """Bytes of the model's weights, biases left out."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        ends = self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden
        return self.dtype_bytes * (self.layers * layer + ends)

    def token_bytes(self, tp: int = 1) -> int:
        """Bytes of one token in the KV cache of each worker."""
        kv = max(1, self.kv_heads // tp)
        return 2 * self.layers * kv * self.head_dim * self.dtype_bytes


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the memory of one worker is divided, in bytes."""

    memory_bytes: int
    weight_bytes: int
    kv_bytes: int
    slot_bytes: int
    max_loras: int
    max_lora_rank: int
    kv_tokens: int
    tensor_parallel_size: int

    @property
    def adapter_bytes(self) -> int:
        """All slots together."""
        return self.slot_bytes * self.max_loras

    def engine(self) -> dict[str, int]:
        """The engine arguments."""
        return {
            "max_loras": self.max_loras,
            "max_lora_rank": self.max_lora_rank,
            "kv_cache_memory_bytes": self.kv_bytes,
            "tensor_parallel_size": self.tensor_parallel_size,
        }


def slot_rank(rank: int) -> int:
    """The smallest ``max_lora_rank`` that vLLM takes and that holds ``rank``.

    Raises:
        PlanError: there is none.
    """
    for allowed in ALLOWED_MAX_RANKS:
        if rank <= allowed:
            return allowed
    raise PlanError(f"rank {rank} is above vLLM's largest, {ALLOWED_MAX_RANKS[-1]}: lower it")


def plan(
    model: Model,
    memory_bytes: int,
    *,
    rank: int,
    fusion_rank: int = 0,
    max_loras: int | None = None,
    kv_bytes: int | None = None,
    max_model_len: int = 1024,
    tp: int = 1,
    weight_bytes: int | None = None,
) -> Plan:
    """A plan for workers with so much memory each.

    Args:
        rank: the largest of an adapter; ``fusion_rank`` the largest sum of ranks in a fusion.
        max_loras, kv_bytes: what is wanted; None for as much as fits.
        max_model_len: the KV cache must hold at least one such request.
        weight_bytes: of the whole model, where they are known better than by formula.

    Raises:
        PlanError: it does not fit; the text names the number to change.
    """
    if model.heads % tp:
        raise PlanError(f"tensor_parallel_size {tp} does not divide the {model.heads} heads")
    base, pool = int(memory_bytes * BASE_SHARE), int(memory_bytes * ADAPTER_SHARE)
    weights = math.ceil((model.weight_bytes() if weight_bytes is None else weight_bytes) / tp)
    left = base - weights
    least = max_model_len * model.token_bytes(tp)
    wanted = least if kv_bytes is None else kv_bytes
    if wanted < least:
        raise PlanError(
            f"kv_cache_memory_bytes {wanted} holds no request of {max_model_len} tokens: raise it "
            f"to {least}, or lower max_model_len"
        )
    if wanted > left:
        raise PlanError(
            f"weights ({_mib(weights)}) and KV cache ({_mib(wanted)}) need more than the "
            f"{_mib(base)} for the base model: "
            + (
                f"lower kv_cache_memory_bytes to at most {left}"
                if left >= least
                else f"raise the memory to {_mib(math.ceil((weights + least) / BASE_SHARE))}"
            )
        )
    slots_rank = slot_rank(max(rank, fusion_rank))
    slot = model.slot_bytes(slots_rank, tp)
    most = pool // slot
    if most < 1 or (max_loras or 0) > most:
        count = max_loras or 1
        cure = f"lower max_loras to at most {most}" if most else "lower max_lora_rank"
        raise PlanError(
            f"{count} slots of rank {slots_rank} ({_mib(slot)} each) need more than the "
            f"{_mib(pool)} for adapters: {cure}, or raise the memory to "
            f"{_mib(math.ceil(count * slot / ADAPTER_SHARE))}"
        )
    kv = left if kv_bytes is None else kv_bytes
    return Plan(
        memory_bytes=memory_bytes,
        weight_bytes=weights,
        kv_bytes=kv,
        slot_bytes=slot,
        max_loras=max_loras or most,
        max_lora_rank=slots_rank,
        kv_tokens=kv // model.token_bytes(tp),
        tensor_parallel_size=tp,
    )


def _mib(size: int) -> str:
    return f"{math.ceil(size / _MIB)} MiB"


def _list(names: Any) -> str:
    return ", ".join(names)
