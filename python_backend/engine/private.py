"""Every private name of vLLM that this project touches, and nothing else touches any.

``Internals.of`` looks for all of them once, at start. What a vLLM version lacks is listed in
``missing``; the worker extension then leaves the features that need it alone, and the engine works
through vLLM's public calls only. Checked against vLLM 0.32 (CPU) and read for 0.24.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

#: vLLM's wrappers of a model's two ends.
_ENDS = frozenset({"LogitsProcessorWithLoRA", "VocabParallelEmbeddingWithLoRA"})


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer that takes an adapter, by the engine's own name for it.

    ``parts`` maps the last name segment of each part that a PEFT file may hold (``q_proj``,
    ``k_proj``, ``v_proj`` for a packed ``qkv_proj``) to its in and out features; ``kind`` is
    ``linear``, ``embedding`` or ``lm_head``.
    """

    name: str
    kind: str
    parts: Mapping[str, tuple[int, int]]


@dataclasses.dataclass
class Internals:
    """The LoRA managers inside one vLLM worker.

    ``worker_manager`` is vLLM's ``LRUCacheWorkerLoRAManager`` (loads adapters, applies them in the
    step), ``model_manager`` its ``LRUCacheLoRAModelManager`` (host cache, slots, layers).
    """

    worker_manager: Any
    model_manager: Any
    missing: tuple[str, ...]

    @classmethod
    def of(cls, worker: Any) -> Internals:
        """The managers of ``worker`` (a vLLM Worker whose model is loaded)."""
        manager = getattr(getattr(worker, "model_runner", None), "lora_manager", None)
        model_manager = getattr(manager, "_adapter_manager", None)
        wanted = {
            "model_runner.lora_manager": manager,
            "_adapter_manager": model_manager,
            "_load_adapter": getattr(manager, "_load_adapter", None),
            "add_adapter": getattr(manager, "add_adapter", None),
            "remove_adapter": getattr(manager, "remove_adapter", None),
            "set_active_adapters": getattr(manager, "set_active_adapters", None),
            "modules": getattr(model_manager, "modules", None),
            "packed_modules": getattr(model_manager, "packed_modules", None),
            "lora_index_to_id": getattr(model_manager, "lora_index_to_id", None),
            "_registered_adapters": getattr(model_manager, "_registered_adapters", None),
            "activate_adapter": getattr(model_manager, "activate_adapter", None),
            "create_dummy_lora": getattr(model_manager, "create_dummy_lora", None),
            "capacity": getattr(model_manager, "capacity", None),
            "list_adapters": getattr(model_manager, "list_adapters", None),
        }
        missing = tuple(name for name, found in wanted.items() if found is None)
        return cls(manager, model_manager, missing)

    def replace_load(self, make: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
        """Has vLLM read adapters (a ``LoRARequest`` each) by what ``make`` makes of its own way."""
        manager = self.worker_manager
        manager._load_adapter = make(manager._load_adapter)

    def host(self, model: Any) -> bool:
        """Puts a loaded adapter into the host cache and into no slot; False if that is full."""
        if len(self.model_manager.list_adapters()) >= self.model_manager.capacity:
            return False
        return bool(self.model_manager.add_adapter(model))

    def slots(self) -> list[int | None]:
        """The adapter id in each slot."""
        return list(self.model_manager.lora_index_to_id)

    def host_cache(self) -> list[int]:
        """The adapter ids in the host cache, least recently used first."""
        return [int(key) for key in self.model_manager.list_adapters()]

    def layers(self) -> list[Layer]:
        """Every layer that takes an adapter, with full (not per-rank) sizes."""
        found = []
        refused = self.refusals()
        for name, module in self.model_manager.modules.items():
            if name in refused:
                continue
            base: Any = getattr(module, "base_layer", None)
            kind = type(module).__name__
            last = name.rsplit(".", 1)[-1]
            if kind == "LogitsProcessorWithLoRA":
                parts = {last: (int(module.hidden_size), int(base.vocab_size))}
                found.append(Layer(name, "lm_head", parts))
            elif kind == "VocabParallelEmbeddingWithLoRA":
                size = (int(base.org_vocab_size), int(base.embedding_dim))
                found.append(Layer(name, "embedding", {last: size}))
            else:
                short = self._parts(name)
                outs = _output_sizes(base, len(short)) or []
                sizes = {s: (int(base.input_size), o) for s, o in zip(short, outs, strict=True)}
                found.append(Layer(name, "linear", sizes))
        return found

    def refusals(self) -> dict[str, str]:
        """The layers that vLLM would give an adapter to, but not rightly; each with the reason.

        vLLM accepts an adapter of such a layer and serves it without that part.
        """
        found = {}
        absorbed = _absorbed(self.model_manager.model)
        for name, module in self.model_manager.modules.items():
            base: Any = getattr(module, "base_layer", None)
            if id(base) in absorbed:
                why = "latent attention has merged this layer's weights into others"
            elif "MoE" in type(module).__name__:
                why = "adapters of grouped experts are not supported"
            elif type(module).__name__ in _ENDS:
                continue
            elif not hasattr(base, "input_size") or not _output_sizes(base, len(self._parts(name))):
                why = f"layers of kind {type(base).__name__} are not supported"
            else:
                continue
            found[name] = why
        return found

    def _parts(self, name: str) -> list[str]:
        """The last name segments of what a PEFT file may hold for the layer ``name``."""
        names = self.model_manager.packed_modules.get(name) or [name]
        return [part.rsplit(".", 1)[-1] for part in names]

    def renames(self) -> tuple[tuple[str, str], ...]:
        """Prefix renames from a checkpoint's names to the engine's, as the model class has them."""
        mapper = getattr(self.model_manager.model, "hf_to_vllm_mapper", None)
        prefixes = getattr(mapper, "orig_to_new_prefix", None) or {}
        return tuple((old, new) for old, new in prefixes.items() if new is not None)

    def slot_bytes(self) -> int:
        """Bytes of all slots of all layers on this worker."""
        total = 0
        for module in self.model_manager.modules.values():
            for tensor in itertools.chain(*stacked(module)):
                total += tensor.numel() * tensor.element_size()
        return total


def _output_sizes(base: Any, parts: int) -> list[int] | None:
    """Full out features of a linear layer's parts, or None if they cannot be told."""
    sizes = getattr(base, "output_sizes", None)
    total = int(getattr(base, "output_size", 0))
    if hasattr(base, "total_num_kv_heads"):
        # With more workers than key heads each head is there several times, and vLLM's own
        # sizes count all of them.
        keys = base.total_num_kv_heads
        values = keys * getattr(base, "v_head_size", base.head_size)
        sizes = [base.total_num_heads * base.head_size, keys * base.head_size, values]
        total = sum(sizes)
    if sizes is not None and len(sizes) == parts:
        return [int(size) for size in sizes]
    return [total] if parts == 1 and total else None


def _absorbed(model: Any) -> set[int]:
    """Identities of the layers that latent attention (MLA) reads once, at load, when it decodes.

    It multiplies their weights into its own; only prefill still calls the layer itself.
    """
    found = set()
    for module in model.modules():
        layer = getattr(module, "kv_b_proj", None)
        if layer is not None and "MLAAttention" in {c.__name__ for c in type(module).__mro__}:
            found.add(id(getattr(layer, "base_layer", layer)))
    return found


def lora_request(name: str, int_id: int, path: str) -> Any:
    """vLLM's own request for an adapter."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, int_id, path)


def kv_caches(worker: Any) -> list[torch.Tensor]:
    """The worker's KV cache tensors."""
    flat: list[torch.Tensor] = []
    for cache in worker.model_runner.kv_caches:
        flat.extend(cache if isinstance(cache, tuple | list) else (cache,))
    return flat


def per_module_scaling() -> bool:
    """Whether this vLLM honours ``rank_pattern`` and ``alpha_pattern`` (0.32 does, 0.24 not)."""
    from vllm.lora.peft_helper import PEFTHelper

    return hasattr(PEFTHelper, "get_rank_and_scaling")


def cpu_wrapper_class() -> type[Any] | None:
    """The class through which vLLM's CPU platform computes LoRA products."""
    try:
        from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
    except ImportError:
        return None
    methods = ("add_lora_linear", "add_lora_logits", "add_lora_embedding", "update_metadata")
    complete = all(callable(getattr(PunicaWrapperCPU, name, None)) for name in methods)
    return PunicaWrapperCPU if complete else None


def watch_slots(internals: Internals, changed: Callable[[Any, int, int], None]) -> None:
    """Calls ``changed(layer, slot, rank)`` whenever a layer's slot is set or reset (rank 0)."""
    for module in internals.model_manager.modules.values():

        def set_lora(
            slot: int, a: Any, b: Any, *args: Any, _m: Any = module, _f: Any = module.set_lora
        ) -> None:
            _f(slot, a, b, *args)
            parts = b if isinstance(b, tuple | list) else (b,)
            changed(_m, slot, max((part.shape[1] for part in parts if part is not None), default=0))

        def reset_lora(slot: int, _m: Any = module, _f: Any = module.reset_lora) -> None:
            _f(slot)
            changed(_m, slot, 0)

        module.set_lora, module.reset_lora = set_lora, reset_lora


def stacked(module: Any) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The weights of all slots of a layer, a tensor a slice: A [S, 1, R, I], B [S, 1, O, R]."""
    a, b = module.lora_a_stacked, module.lora_b_stacked
    return (tuple(a), tuple(b)) if isinstance(a, tuple | list) else ((a,), (b,))


def restack(module: Any, a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> None:
    """Gives a layer other tensors for its slots, of the same shapes."""
    several = isinstance(module.lora_a_stacked, tuple | list)
    module.lora_a_stacked, module.lora_b_stacked = (a, b) if several else (a[0], b[0])


def watch_adapters(
    internals: Internals,
    loaded: Callable[[Any, float], None],
    activated: Callable[[int, list[int | None], float], None],
) -> None:
    """Tells of each adapter that is read, and of each activation; failures are not told of.

    ``loaded(request, seconds)`` is called in the thread that read; ``activated(id, slots before,
    seconds)`` also where the adapter had a slot already. Neither may raise.
    """
    workers, models = internals.worker_manager, internals.model_manager
    load, activate = workers._load_adapter, models.activate_adapter

    def load_adapter(request: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        model = load(request, *args, **kwargs)
        loaded(request, time.monotonic() - began)
        return model

    def activate_adapter(int_id: int, *args: Any, **kwargs: Any) -> Any:
        before, began = internals.slots(), time.monotonic()
        result = activate(int_id, *args, **kwargs)
        activated(int_id, before, time.monotonic() - began)
        return result

    workers._load_adapter, models.activate_adapter = load_adapter, activate_adapter
