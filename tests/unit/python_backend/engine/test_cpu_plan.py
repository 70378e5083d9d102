"""Which rows are computed how."""

from __future__ import annotations

import torch

from python_backend.engine.cpu_plan import Batch, Singles, arrange, plan


def test_a_plan_names_rows_by_slice_or_index() -> None:
    found = plan(torch.tensor([2, 2, -1, 0, 2, 0, -1]))
    assert [group.slot for group in found.groups] == [0, 2]
    rows = [torch.arange(7)[group.rows].tolist() for group in found.groups]
    assert rows == [[3, 5], [0, 1, 4]]
    (only,) = plan(torch.tensor([-1, 4, 4])).groups
    assert (only.slot, only.rows) == (4, slice(1, 3))
    assert plan(torch.tensor([-1, -1])).groups == ()


def ways(row_slots: list[int], by_row: bool = False) -> tuple[list[int], list[int]]:
    """The slots that are computed by themselves, and those that are computed together."""
    groups = plan(torch.tensor(row_slots)).groups
    found = arrange(groups, by_row)
    assert isinstance(found.rest, (Singles if by_row else Batch) if found.rest else type(None))
    alone = [group.slot for group in found.alone]
    return alone, [group.slot for group in groups if group.slot not in alone]


def test_the_way_follows_the_batch() -> None:
    # One adapter; one after the other in decode; far apart; a prompt beside decodes; two prompts.
    assert ways([3] * 16) == ([3], [])
    assert ways([row % 4 for row in range(16)]) == ([], [0, 1, 2, 3])
    assert ways([0] * 8 + [60] * 8) == ([0, 60], [])
    assert ways([2] * 500 + list(range(16))) == ([2], [s for s in range(16) if s != 2])
    assert ways([0] * 300 + [1] * 200) == ([0, 1], [])
    assert ways([3] * 16, by_row=True) == ([], [3])
    assert ways([0] * 8 + [60] * 8, by_row=True) == ([], [0, 60])
    assert ways([2] * 500 + [1] * 16, by_row=True) == ([2], [1])
