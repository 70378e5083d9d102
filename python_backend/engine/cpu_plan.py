"""How the rows of a batch are computed: which slots alone, and what is done with the rest.

Decided once a step, by counting; ``cpu_kernels`` says what the ways are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

# What a step costs, in rows: the time that one more row of a large group takes (60 µs for all
# products of the 30 blocks of SmolLM2: hidden 576, rank 16, bfloat16, one thread of a Zen 5 core).
# A call of oneDNN has a price of its own, 11 to 25 µs; a slot's weights are read once, however
# many rows it has. Measured, in ms a step, alone / together / row by row:
#   16 rows of one slot     7 / 9 / 3.7      16 rows of 4 slots       30 / 9 / 5.0
#   64 rows of one slot     11 / 12 / 11.4   16 rows of 16 slots      87 / 23 / 10.7
#   500 rows of one slot    31 / 35 / 88
#: A group alone, besides its rows.
GROUP_ROWS = 100
#: A batched product, besides its slots.
BATCH_ROWS = 120
#: A slot of a batched product, besides its rows.
SLOT_ROWS = 20
#: All that is done row by row, each of its slots, and each of its rows.
ROWS_ROWS, ROWS_SLOT_ROWS, ROW_ROWS = 20, 7, 3


@dataclasses.dataclass(frozen=True)
class Group:
    """The rows of one slot: a slice where they are consecutive, else their indices."""

    slot: int
    rows: slice | torch.Tensor
    count: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """Groups that are computed together, over the slots from ``first`` on.

    Attributes:
        slots, width: how many slots, and rows of each; a slot with fewer has some twice.
        gather: the row of ``x`` at each place, int64 [slots * width]; None: they lie so already.
        places: where each of ``rows`` is among the places, int64; None: as they lie.
        rows: the rows of ``y``; a slice where they are consecutive.
    """

    first: int
    slots: int
    width: int
    gather: torch.Tensor | None
    places: torch.Tensor | None
    rows: slice | torch.Tensor


@dataclasses.dataclass(frozen=True)
class Singles:
    """Rows that are computed one by one: their numbers and slots, int64 [K]."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    slots: np.ndarray[Any, np.dtype[np.int64]]


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Which groups are computed alone, and what is done with the rest."""

    alone: tuple[Group, ...]
    rest: Batch | Singles | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one batch's rows map to slots; rows without an adapter are in no group."""

    groups: tuple[Group, ...]
    _arranged: dict[tuple[bool, tuple[int, ...]], Arrangement] = dataclasses.field(
        default_factory=dict
    )

    def arranged(self, in_use: Collection[int] | None, by_row: bool) -> Arrangement:
        """The cheapest way to compute the groups of slots ``in_use`` (None: of all).

        Args:
            by_row: whether rows can be computed one by one.
        """
        wanted = tuple(
            number
            for number, group in enumerate(self.groups)
            if in_use is None or group.slot in in_use
        )
        found = self._arranged.get((by_row, wanted))
        if found is None:
            found = arrange([self.groups[number] for number in wanted], by_row)
            self._arranged[by_row, wanted] = found
        return found


def plan(slots: torch.Tensor) -> Plan:
    """Groups the rows of ``slots`` (int64 [T], -1 for no adapter) by slot."""
    by_slot: dict[int, list[int]] = {}
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            by_slot.setdefault(slot, []).append(row)
    return Plan(tuple(Group(slot, _picked(r), len(r)) for slot, r in sorted(by_slot.items())))


def arrange(groups: Sequence[Group], by_row: bool) -> Arrangement:
    """The cheapest of: so many of the largest groups alone, and the rest in one other way."""
    by_size = sorted(groups, key=lambda group: -group.count)
    best: tuple[int, int, bool] | None = None
    for alone in range(len(by_size), -1, -1):
        rest = by_size[alone:]
        cost = sum(GROUP_ROWS + group.count for group in by_size[:alone])
        for single in (True, False) if rest and by_row else (False,):
            whole = cost + (_singles_cost(rest) if single else _batch_cost(rest))
            if best is None or whole < best[0]:
                best = (whole, alone, single)
    _, alone, single = best or (0, 0, False)
    rest = sorted(by_size[alone:], key=lambda group: group.slot)
    if not rest:
        return Arrangement(tuple(by_size), None)
    return Arrangement(tuple(by_size[:alone]), _singles(rest) if single else _batch(rest))


def _batch_cost(groups: Sequence[Group]) -> int:
    if not groups:
        return 0
    slots = [group.slot for group in groups]
    return BATCH_ROWS + (max(slots) - min(slots) + 1) * (SLOT_ROWS + groups[0].count)


def _singles_cost(groups: Sequence[Group]) -> int:
    rows = sum(group.count for group in groups)
    return ROWS_ROWS + ROWS_SLOT_ROWS * len(groups) + ROW_ROWS * rows


def _singles(groups: Sequence[Group]) -> Singles:
    pairs = [(row, group.slot) for group in groups for row in _listed(group.rows)]
    rows, slots = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    return Singles(rows, slots)


def _batch(groups: Sequence[Group]) -> Batch:
    first, width = groups[0].slot, max(group.count for group in groups)
    slots = groups[-1].slot - first + 1
    gather = [0] * (slots * width)
    places = {}
    for group in groups:
        start = (group.slot - first) * width
        rows = _listed(group.rows)
        # A place that no row fills is computed too, and thrown away.
        gather[start : start + width] = rows + rows[:1] * (width - len(rows))
        places.update({row: start + number for number, row in enumerate(rows)})
    ordered = sorted(places)
    lie = [places[row] for row in ordered]
    return Batch(
        first,
        slots,
        width,
        None if gather == list(range(len(gather))) else torch.tensor(gather),
        None if lie == list(range(len(gather))) else torch.tensor(lie),
        _picked(ordered),
    )


def _picked(rows: list[int]) -> slice | torch.Tensor:
    consecutive = rows[-1] - rows[0] + 1 == len(rows)
    return slice(rows[0], rows[-1] + 1) if consecutive else torch.tensor(rows)


def _listed(rows: slice | torch.Tensor) -> list[int]:
    return list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()
