"""LoRA products on a CPU, right for base rows and cheap for few tokens and for many.

vLLM's CPU path gathers the weights of a slot **per token**, and a token without an adapter (slot
-1) indexes the last slot: a base request batched with others is answered with somebody else's
adapter. Here the rows of a batch are grouped by slot once a step, and each product is either

- one shrink and one expand per group (few groups: prefill, or few adapters), or
- one shrink of all rows with all slots, then an expand per group (decode with many adapters),

both of which leave rows without an adapter untouched, and a row alone with its own slot. Rounding
follows the reference: the shrink is rounded to the model's dtype, then the expand, then the sum.

Shapes, with T rows, S slots, R the maximum rank, I and O a layer's in and out features:
``x`` [T, I], ``a`` [S, 1, R, I], ``b`` [S, 1, O, R], ``y`` [T, O'] with O' >= the slices' sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch

# Measured with SmolLM2's shapes (hidden 576, rank 16, bfloat16, one thread), in µs for
# the seven products of one block, per group / shared shrink:
#   4 slots, 16 rows:   2 groups 512/429   4 groups 1015/721
#   16 slots, 16 rows:  2 groups 496/548   4 groups 1011/813   16 groups 4110/2364
#   64 slots, 16 rows:  4 groups 1016/1503   8 groups 2064/2252   16 groups 4186/3316
#   16 slots, 128 rows: 4 groups 1162/1650   8 groups 2282/2234
#: One shrink with all slots pays where it meets no more slots per group than this,
SHARE_SLOTS_PER_GROUP = 4
#: and up to this many rows (prefill has more).
SHARE_UP_TO_ROWS = 32


@dataclasses.dataclass(frozen=True)
class Group:
    """The rows of one slot: a slice where they are consecutive, else their indices."""

    slot: int
    rows: slice | torch.Tensor


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one batch's rows map to slots; rows without an adapter are in no group."""

    groups: tuple[Group, ...]


def plan(slots: torch.Tensor) -> Plan:
    """Groups the rows of ``slots`` (int64 [T], -1 for no adapter) by slot."""
    by_slot: dict[int, list[int]] = {}
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            by_slot.setdefault(slot, []).append(row)
    groups = []
    for slot, rows in sorted(by_slot.items()):
        consecutive = rows[-1] - rows[0] + 1 == len(rows)
        picked = slice(rows[0], rows[-1] + 1) if consecutive else torch.tensor(rows)
        groups.append(Group(slot, picked))
    return Plan(tuple(groups))


def add_lora(
    y: torch.Tensor,
    x: torch.Tensor,
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    plan: Plan,
    scale: float,
    offsets: Sequence[int],
    in_use: Collection[int] | None = None,
) -> None:
    """``y[:, o:o+O] += (x @ a.T * scale) @ b.T`` per row's slot, for each slice; in place.

    ``in_use`` are the slots that hold weights for this layer at all (None: any may): an adapter
    that leaves a layer alone costs nothing there.
    """
    groups = plan.groups
    if in_use is not None:
        groups = tuple(group for group in groups if group.slot in in_use)
    if not groups:
        return
    # The shared shrink does slots x rows of work, which many rows (prefill) do not repay.
    shared = (
        1 < len(groups) >= a[0].shape[0] / SHARE_SLOTS_PER_GROUP and x.shape[0] <= SHARE_UP_TO_ROWS
    )
    for a_slice, b_slice, offset in zip(a, b, offsets, strict=True):
        size = b_slice.shape[-2]
        # The engine may pad a layer's output (a vocabulary, say) less than the adapter's.
        width = min(size, y.shape[1] - offset)
        out = y[:, offset : offset + width]
        if shared:
            _shared_shrink(out, x, a_slice, b_slice, groups, scale)
        else:
            _per_group(out, x, a_slice, b_slice, groups, scale)


def _per_group(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    groups: tuple[Group, ...],
    scale: float,
) -> None:
    for group in groups:
        low = torch.mm(x[group.rows], a[group.slot, 0].t())
        if scale != 1.0:
            low *= scale
        out[group.rows] += torch.mm(low.to(b.dtype), b[group.slot, 0, : out.shape[1]].t()).to(
            out.dtype
        )


def _shared_shrink(
    out: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    groups: tuple[Group, ...],
    scale: float,
) -> None:
    slots, _, rank, width = a.shape
    low = torch.mm(x, a.view(slots * rank, width).t()).view(-1, slots, rank)
    if scale != 1.0:
        low *= scale
    # A row's products with other slots are left lying, not multiplied by zero and summed: zero
    # times the NaN that a bad slot may hold would not be zero.
    for group in groups:
        own = low[group.rows, group.slot].to(b.dtype)
        out[group.rows] += torch.mm(own, b[group.slot, 0, : out.shape[1]].t()).to(out.dtype)


def add_lora_embedding(y: torch.Tensor, low: torch.Tensor, b: torch.Tensor, plan: Plan) -> None:
    """``y += low @ b.T`` per row's slot, in place: the second half of an embedding's adapter."""
    for group in plan.groups:
        product = torch.mm(low[group.rows].to(b.dtype), b[group.slot, 0].t())
        y[group.rows, : product.shape[1]] += product.to(y.dtype)
