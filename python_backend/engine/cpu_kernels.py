"""LoRA products on a CPU, right for base rows and cheap for few tokens and for many.

vLLM's CPU path gathers the weights of a slot **per token**, and a token without an adapter (slot
-1) indexes the last slot: a base request batched with others is answered with somebody else's
adapter. Here the rows of a batch are grouped by slot once a step. Groups are computed

- alone, a product each: a group of many rows (prefill),
- or row by row, in one compiled call (``cpu_rows``): few rows (decode),
- or together, in one batched product over a run of slots, each with as many rows as the fullest
  has: many short prompts, and decode where nothing could be compiled,

whichever is cheapest for the batch: large groups alone, the rest one of the other ways. In each a
row meets the weights of its own slot only, and rows without an adapter are not touched. Rounding
follows the reference: the shrink is rounded to the model's dtype, then the expand, then the sum.

Shapes, with T rows, S slots, R the maximum rank, n slices, I and O a layer's in and out features:
``x`` [T, I], ``a`` [S, R, n, I], ``b`` [S, R, sum of O], ``y`` [T, O'] with O' >= that sum.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from python_backend.engine import cpu_rows
from python_backend.engine.cpu_plan import Batch, Group, Plan, Singles


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of all slots of a layer's slices that share one input (see the module).

    Attributes:
        ends: where the slices' columns begin in ``b``, and where the last one ends.
    """

    a: torch.Tensor
    b: torch.Tensor
    ends: tuple[int, ...]

    @functools.cached_property
    def arrays(self) -> tuple[str, Any, Any, Any]:
        """Their type, and ``a``, ``b``, ``ends`` for ``cpu_rows``; no type where it cannot."""
        kind = cpu_rows.kind_of(self.a, self.b)
        if not kind or self.a.shape[1] % cpu_rows.RANK_STEP:
            return "", None, None, None
        a, b = cpu_rows.as_array(self.a), cpu_rows.as_array(self.b)
        return kind, a, b, np.array(self.ends, np.int64)

    @property
    def slices(self) -> tuple[torch.Tensor, ...]:
        """``b`` of each slice, [S, R, O]."""
        pairs = zip(self.ends[:-1], self.ends[1:], strict=True)
        return tuple(self.b[:, :, begin:end] for begin, end in pairs)


def add_lora(
    y: torch.Tensor,
    x: torch.Tensor,
    weights: Sequence[Weights],
    plan: Plan,
    scale: float,
    offsets: Sequence[int],
    ranks: Mapping[int, int] | None = None,
    by_row: Callable[[str], Any | None] | None = None,
) -> None:
    """``y[:, o:o+O] += (x @ a.T * scale) @ b`` per row's slot, for each slice; in place.

    Args:
        weights: of the layer's slices, all together or in several parts, in order.
        offsets: where each slice begins in ``y``.
        ranks: the slots that hold weights for this layer at all, and the ranks of those: an
            adapter that leaves a layer alone costs nothing there, and one of a small rank less.
            None: any slot may, of the largest rank.
        by_row: ``cpu_rows.compiled``; None: rows are not computed one by one.
    """
    kind = cpu_rows.kind_of(x, y)
    product = by_row(kind) if by_row is not None and kind else None
    done = 0
    for part in weights:
        starts = offsets[done : done + len(part.ends) - 1]
        done += len(starts)
        own_kind, a, b, ends = part.arrays
        single = product is not None and own_kind == kind
        arrangement = plan.arranged(ranks, single)
        for group in arrangement.alone:
            rank = part.a.shape[1] if ranks is None else ranks[group.slot]
            _alone(y, x, part, group, scale, starts, rank)
        rest = arrangement.rest
        if isinstance(rest, Batch):
            _together(y, x, part, rest, scale, starts, ranks)
        elif rest is not None and product is not None:
            product(
                cpu_rows.as_array(y),
                cpu_rows.as_array(x),
                a,
                b,
                rest.rows,
                rest.slots,
                _ranks_of(rest, part, ranks),
                np.array(starts, np.int64),
                ends,
                np.float32(scale),
            )


def _ranks_of(singles: Singles, weights: Weights, ranks: Mapping[int, int] | None) -> Any:
    most, step = weights.a.shape[1], cpu_rows.RANK_STEP
    if ranks is None:
        return np.full(len(singles.slots), most, np.int64)
    return np.array([-(-ranks[slot] // step) * step for slot in singles.slots.tolist()], np.int64)


def _alone(
    y: torch.Tensor,
    x: torch.Tensor,
    weights: Weights,
    group: Group,
    scale: float,
    offsets: Sequence[int],
    rank: int,
) -> None:
    low = torch.mm(x[group.rows], weights.a[group.slot, :rank].flatten(0, 1).t())
    for own, b, offset in zip(_by_slice(low, weights, scale), weights.slices, offsets, strict=True):
        # The engine may pad a layer's output (a vocabulary, say) less than the adapter's.
        width = min(b.shape[-1], y.shape[1] - offset)
        product = torch.mm(own, b[group.slot, :rank, :width])
        _add(y[:, offset : offset + width], group.rows, product)


def _together(
    y: torch.Tensor,
    x: torch.Tensor,
    weights: Weights,
    batch: Batch,
    scale: float,
    offsets: Sequence[int],
    ranks: Mapping[int, int] | None,
) -> None:
    span = slice(batch.first, batch.first + batch.slots)
    rank = weights.a.shape[1]
    if ranks is not None:
        rank = max(ranks.get(slot, 0) for slot in range(span.start, span.stop))
    gathered = x if batch.gather is None else x.index_select(0, batch.gather)
    low = torch.bmm(
        gathered.view(batch.slots, batch.width, -1),
        weights.a[span, :rank].flatten(1, 2).transpose(1, 2),
    )
    for own, b, offset in zip(_by_slice(low, weights, scale), weights.slices, offsets, strict=True):
        width = min(b.shape[-1], y.shape[1] - offset)
        product = torch.bmm(own, b[span, :rank, :width]).flatten(0, 1)
        if batch.places is not None:
            product = product.index_select(0, batch.places)
        _add(y[:, offset : offset + width], batch.rows, product)


def _by_slice(low: torch.Tensor, weights: Weights, scale: float) -> Sequence[torch.Tensor]:
    """The shrunk rows [..., R * n] of each slice, [..., R], in the dtype of ``b``."""
    if scale != 1.0:
        low *= scale
    low, slices = low.to(weights.b.dtype), len(weights.ends) - 1
    if slices == 1:
        return (low,)
    apart: Sequence[torch.Tensor] = low.unflatten(-1, (-1, slices)).movedim(-1, 0).contiguous()
    return apart


def _add(y: torch.Tensor, rows: slice | torch.Tensor, product: torch.Tensor) -> None:
    product = product.to(y.dtype)
    if isinstance(rows, slice):
        y[rows].add_(product)
    else:
        y.index_add_(0, rows, product)


def add_lora_embedding(y: torch.Tensor, low: torch.Tensor, b: torch.Tensor, plan: Plan) -> None:
    """``y += low @ b.T`` per row's slot, in place: the second half of an embedding's adapter.

    ``low`` [T, R] is what the layer looked up, ``b`` [S, 1, O, R] vLLM's own.
    """
    for group in plan.groups:
        product = torch.mm(low[group.rows].to(b.dtype), b[group.slot, 0].t())
        _add(y[:, : product.shape[1]], group.rows, product)
