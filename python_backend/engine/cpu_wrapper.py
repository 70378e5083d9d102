"""Puts ``cpu_kernels`` in the place of vLLM's own LoRA products on a CPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from python_backend.engine import cpu_kernels, cpu_plan, cpu_rows, private
from python_backend.engine.cpu_kernels import Weights


@dataclasses.dataclass
class LayerSlots:
    """A layer's weights as the kernels take them, and the rank of each slot that holds any."""

    weights: tuple[Weights, ...]
    ranks: dict[int, int] = dataclasses.field(default_factory=dict)


def repair_cpu_kernels(internals: private.Internals) -> bool:
    """Replaces vLLM's CPU LoRA products by those of ``cpu_kernels``.

    Returns False where this vLLM's class is not the one we know; it is then left as it is.
    """
    wrapper = private.cpu_wrapper_class()
    if wrapper is None:
        return False
    if internals.missing:
        patch_wrapper(wrapper, None)
        return True
    layers: dict[int, LayerSlots] = {}
    for module in internals.model_manager.modules.values():
        a, b = private.stacked(module)
        if a[0].dim() != 4:
            continue  # An embedding: its first half is a table, its second goes by groups.
        packed = pack(a, b)
        if packed is not None:
            a, b = unpacked(packed, a[0].shape[2])
            private.restack(module, a, b)
        layers[id(a[0])] = LayerSlots((packed,) if packed is not None else apart(a, b))

    def changed(layer: Any, slot: int, rank: int) -> None:
        slots = layers.get(id(private.stacked(layer)[0][0]))
        if slots is not None and rank:
            slots.ranks[slot] = rank
        elif slots is not None:
            slots.ranks.pop(slot, None)

    private.watch_slots(internals, changed)
    patch_wrapper(wrapper, layers)
    return True


def pack(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> Weights | None:
    """vLLM's tensors of a layer's slices in an order that is read in one go.

    The shrinks of all slices, which share an input, become one product; each expand reads rows.

    Args:
        a, b: a tensor a slice, [S, 1, R, I] and [S, 1, O, R].

    Returns:
        None where the slices differ in more than their output.
    """
    if any(tensor.dim() != 4 or tensor.shape != a[0].shape for tensor in a):
        return None
    if any(tensor.dim() != 4 or tensor.shape[3] != a[0].shape[2] for tensor in b):
        return None
    sizes = [tensor.shape[2] for tensor in b]
    slots, _, rank, width = a[0].shape
    padded = -(-rank // cpu_rows.RANK_STEP) * cpu_rows.RANK_STEP
    packed = Weights(
        a[0].new_zeros(slots, padded, len(a), width),
        b[0].new_zeros(slots, padded, sum(sizes)),
        (0, *itertools.accumulate(sizes)),
    )
    for mine, theirs in zip(itertools.chain(*unpacked(packed, rank)), (*a, *b), strict=True):
        mine.copy_(theirs)
    return packed


def unpacked(
    weights: Weights, rank: int
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The same memory in vLLM's shapes: what it writes there, the kernels read."""
    return (
        tuple(weights.a[:, None, :rank, number] for number in range(weights.a.shape[2])),
        tuple(tensor[:, :rank].transpose(1, 2)[:, None] for tensor in weights.slices),
    )


def apart(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> tuple[Weights, ...]:
    """vLLM's tensors as they are, a part a slice; nothing is copied."""
    return tuple(
        Weights(one[:, 0, :, None], other[:, 0].transpose(1, 2), (0, other.shape[2]))
        for one, other in zip(a, b, strict=True)
    )


def patch_wrapper(wrapper: type[Any], layers: dict[int, LayerSlots] | None) -> None:
    """Gives vLLM's CPU wrapper class our products.

    ``layers`` maps the identity of a layer's (first) stacked A to its slots; None where those
    cannot be watched: any slot may then hold weights.
    """
    update_metadata, by_row = wrapper.update_metadata, cpu_rows.compiled
    for layer in (layers or {}).values():
        for part in layer.weights:
            by_row(part.arrays[0])  # Now: the first request would wait for it.

    def update(self: Any, *args: Any, **kwargs: Any) -> None:
        update_metadata(self, *args, **kwargs)
        self._lora_plans = {}

    def plan_of(self: Any, indices: torch.Tensor, rows: int) -> cpu_plan.Plan:
        plans: dict[tuple[int, int], cpu_plan.Plan] = self.__dict__.setdefault("_lora_plans", {})
        key = (indices.data_ptr(), rows)
        if key not in plans:
            plans[key] = cpu_plan.plan(indices[:rows])
        return plans[key]

    def add(
        y: torch.Tensor,
        x: torch.Tensor,
        a: Sequence[torch.Tensor],
        b: Sequence[torch.Tensor],
        plan: cpu_plan.Plan,
        scale: float,
        offsets: Sequence[int],
    ) -> None:
        if not plan.groups:
            return
        slots = None if layers is None else layers.get(id(a[0]))
        if slots is None:
            cpu_kernels.add_lora(y, x, apart(a, b), plan, scale, offsets, None, by_row)
        elif slots.ranks:
            cpu_kernels.add_lora(y, x, slots.weights, plan, scale, offsets, slots.ranks, by_row)

    def linear(
        self: Any,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        offsets = [sum(output_slices[:i]) for i in range(len(output_slices))]
        plan = plan_of(self, self.token_lora_indices, x.shape[0])
        add(y, x, lora_a_stacked, lora_b_stacked, plan, scale, offsets)

    def logits(
        self: Any,
        y: torch.Tensor,
        x: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
        **_: Any,
    ) -> None:
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        plan = plan_of(self, self.sampler_indices, x.shape[0])
        add(y, x, (a,), (b,), plan, scale, (0,))

    def embedding(
        self: Any, y: torch.Tensor, x: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any
    ) -> None:
        plan = plan_of(self, self.token_lora_indices, x.shape[0])
        cpu_kernels.add_lora_embedding(y, x, b, plan)

    wrapper.update_metadata = update
    wrapper.add_lora_linear = linear
    wrapper.add_lora_logits = logits
    wrapper.add_lora_embedding = embedding
