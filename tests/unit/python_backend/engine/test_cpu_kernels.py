"""The products against a plain reference, with numbers small enough to be exact in bfloat16."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine import cpu_kernels, cpu_plan, cpu_rows
from python_backend.engine.cpu_kernels import add_lora_embedding
from python_backend.engine.cpu_plan import Plan, plan
from python_backend.engine.cpu_wrapper import apart, pack, unpacked

NAN = float("nan")


@dataclasses.dataclass
class Case:
    """One batch: ``row_slots`` per row, two or more slices of ``sizes`` out features."""

    seed: int
    dtype: torch.dtype
    row_slots: list[int]
    slots: int
    rank: int
    width: int
    sizes: list[int]
    pad: int
    scale: float

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """y, x, a, b; slots that no row uses hold NaN and infinity."""
        chance = torch.Generator().manual_seed(self.seed)

        def numbers(*shape: int) -> torch.Tensor:
            return torch.randint(-2, 3, shape, generator=chance).to(self.dtype)

        rows = len(self.row_slots)
        y = numbers(rows, sum(self.sizes) + self.pad)
        x = numbers(rows, self.width)
        a = [numbers(self.slots, 1, self.rank, self.width) for _ in self.sizes]
        b = [numbers(self.slots, 1, size, self.rank) for size in self.sizes]
        for slot in set(range(self.slots)) - set(self.row_slots):
            for tensor in (*a, *b):
                tensor[slot] = NAN if slot % 2 else float("inf")
        return y, x, a, b

    @property
    def offsets(self) -> list[int]:
        return [sum(self.sizes[:i]) for i in range(len(self.sizes))]


def reference(
    case: Case,
    y: torch.Tensor,
    x: torch.Tensor,
    a: list[torch.Tensor],
    b: list[torch.Tensor],
) -> torch.Tensor:
    """Row by row in fp32, rounded to the dtype after the shrink, the expand and the sum."""
    y = y.clone()
    for row, slot in enumerate(case.row_slots):
        if slot < 0:
            continue
        for a_slice, b_slice, offset in zip(a, b, case.offsets, strict=True):
            low = (a_slice[slot, 0].float() @ x[row].float()).to(case.dtype) * case.scale
            product = (b_slice[slot, 0].float() @ low.float()).to(case.dtype)
            y[row, offset : offset + len(product)] += product
    return y


@st.composite
def cases(draw: st.DrawFn, max_rows: int = 24) -> Case:
    slots = draw(st.integers(1, 6))
    return Case(
        seed=draw(st.integers(0, 2**20)),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
        row_slots=draw(st.lists(st.integers(-1, slots - 1), min_size=1, max_size=max_rows)),
        slots=slots,
        rank=draw(st.sampled_from([1, 3, 8, 16])),
        # At most 32: a sum of 32 products of at most 4 is exact in bfloat16.
        width=draw(st.integers(1, 32)),
        sizes=draw(st.lists(st.integers(1, 20), min_size=1, max_size=3)),
        pad=draw(st.integers(0, 5)),
        scale=draw(st.sampled_from([1.0, 0.5, 2.0])),
    )


BY_ROW = cpu_rows.compiled


@pytest.fixture(params=["as it is", "alone", "together", "by row"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of computing, and the choice between them."""
    if request.param != "as it is":
        kinds = {"alone": "GROUP_ROWS", "together": "BATCH_ROWS", "by row": "ROWS_ROWS"}
        for kind in kinds.keys() - {request.param}:
            monkeypatch.setattr(cpu_plan, kinds[kind], 10**6)
    return str(request.param)


def add_lora(
    y: torch.Tensor,
    x: torch.Tensor,
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    plan: Plan,
    scale: float,
    offsets: Sequence[int],
    ranks: Mapping[int, int] | None = None,
) -> None:
    """With the weights packed, and beside it with vLLM's as they are: bit by bit the same."""
    other = y.clone()
    packed = pack(a, b)
    assert packed is not None
    cpu_kernels.add_lora(y, x, (packed,), plan, scale, offsets, ranks, BY_ROW)
    cpu_kernels.add_lora(other, x, apart(a, b), plan, scale, offsets, ranks)
    assert torch.equal(y.isnan(), other.isnan())
    assert torch.equal(y.nan_to_num(), other.nan_to_num())


def check(case: Case) -> None:
    y, x, a, b = case.tensors()
    before, expected = y.clone(), reference(case, y, x, a, b)
    add_lora(y, x, a, b, plan(torch.tensor(case.row_slots)), case.scale, case.offsets)
    assert torch.equal(y, expected)
    base = [row for row, slot in enumerate(case.row_slots) if slot < 0]
    assert torch.equal(y[base], before[base])
    # What lies beyond the slices is the engine's padding.
    assert torch.equal(y[:, sum(case.sizes) :], before[:, sum(case.sizes) :])


@settings(max_examples=80, deadline=None)
@given(case=cases())
def test_as_it_is(case: Case) -> None:
    check(case)


def test_both_ways_decode_and_prefill(way: str) -> None:
    chance = torch.Generator().manual_seed(7)
    for rows in (1, 5, 16, 33, 130):
        for slots in (1, 4, 16):
            for consecutive in (True, False):
                row_slots = torch.randint(-1, slots, (rows,), generator=chance)
                if consecutive:
                    row_slots = row_slots.sort().values
                for dtype in (torch.float32, torch.bfloat16):
                    case = Case(rows, dtype, row_slots.tolist(), slots, 8, 32, [12, 4], 3, 1.0)
                    check(case)


def test_a_bad_slot_in_the_batch_stays_with_its_own_rows(way: str) -> None:
    case = Case(1, torch.bfloat16, [-1, 0, 1, 2, -1, 2, 0, 3], 4, 8, 16, [10, 6], 0, 1.0)
    y, x, a, b = case.tensors()
    expected = reference(case, y, x, a, b)
    for tensor in (*a, *b):
        tensor[2] = NAN
    add_lora(y, x, a, b, plan(torch.tensor(case.row_slots)), 1.0, case.offsets)
    bad = torch.tensor([slot == 2 for slot in case.row_slots])
    assert torch.equal(y[~bad], expected[~bad])
    assert bool(y[bad].isnan().all())


def test_base_rows_keep_their_bits(way: str) -> None:
    """Negative zero too: not even a zero is added to them."""
    case = Case(3, torch.float32, [-1, 0, -1, 1, 2], 3, 4, 8, [6], 2, 1.0)
    y, x, a, b = case.tensors()
    y[0], y[2] = -0.0, 1e-30
    before = y.clone()
    add_lora(y, x, a, b, plan(torch.tensor(case.row_slots)), 1.0, case.offsets)
    assert torch.equal(y[[0, 2]].view(torch.int32), before[[0, 2]].view(torch.int32))


def test_the_last_slot_is_not_the_base_rows(way: str) -> None:
    """vLLM's own CPU path indexes the last slot with -1."""
    case = Case(5, torch.bfloat16, [-1, -1, 3], 4, 8, 16, [10], 0, 1.0)
    y, x, a, b = case.tensors()
    before = y.clone()
    add_lora(y, x, a, b, plan(torch.tensor(case.row_slots)), 1.0, case.offsets)
    assert torch.equal(y[:2], before[:2])
    assert not torch.equal(y[2], before[2])


@pytest.mark.parametrize("width", [10, 7, 1])
def test_an_output_narrower_than_the_adapters(width: int, way: str) -> None:
    case = Case(2, torch.float32, [0, 1, -1, 2], 3, 4, 8, [10], 0, 1.0)
    y, x, a, b = case.tensors()
    expected = reference(case, y, x, a, b)[:, :width]
    y = y[:, :width].clone()
    add_lora(y, x, a, b, plan(torch.tensor(case.row_slots)), 1.0, [0])
    assert torch.equal(y, expected)


def test_slots_not_in_use_cost_and_change_nothing(way: str) -> None:
    case = Case(4, torch.float32, [0, 1, 2, 1], 3, 4, 8, [10], 0, 1.0)
    y, x, a, b = case.tensors()
    before, expected = y.clone(), reference(case, y, x, a, b)
    groups = plan(torch.tensor(case.row_slots))
    add_lora(y, x, a, b, groups, 1.0, [0], ranks={})
    assert torch.equal(y, before)
    add_lora(y, x, a, b, groups, 1.0, [0], ranks={1: 4})
    assert torch.equal(y[[1, 3]], expected[[1, 3]])
    assert torch.equal(y[[0, 2]], before[[0, 2]])


def test_what_vllm_writes_into_its_shapes_is_what_is_computed_with() -> None:
    a = [torch.zeros(3, 1, 4, 8) for _ in range(2)]
    b = [torch.zeros(3, 1, size, 4) for size in (5, 6)]
    packed = pack(a, b)
    assert packed is not None
    a_views, b_views = unpacked(packed, 4)
    assert [t.shape for t in a_views] == [t.shape for t in a]
    assert [t.shape for t in b_views] == [t.shape for t in b]
    a_views[1][2, 0, :2, :8].copy_(torch.ones(2, 8))
    b_views[0][2, 0, :5, :2].copy_(torch.full((5, 2), 3.0))
    assert packed.a[2, :, 1].tolist() == [[1.0] * 8] * 2 + [[0.0] * 8] * 2
    assert packed.a[:, :, 0].count_nonzero() == 0
    assert packed.b[2, :, :5].tolist() == [[3.0] * 5] * 2 + [[0.0] * 5] * 2
    # Slices of different inputs are left as they are.
    assert pack([*a[:1], torch.zeros(3, 1, 4, 9)], b) is None
    assert pack(a, [*b[:1], torch.zeros(3, 1, 6, 2)]) is None


@settings(max_examples=60, deadline=None)
@given(case=cases(), chance=st.randoms(use_true_random=False))
def test_mixed_ranks_as_vllms_own_ops_compute_them(case: Case, chance: Random) -> None:
    """vLLM's gather, with what it should have done for rows without an adapter: nothing."""
    from vllm.lora.ops.torch_ops import bgmv_expand_slice, bgmv_shrink

    y, x, a, b = case.tensors()
    ranks = {slot: chance.randint(1, case.rank) for slot in range(case.slots)}
    for tensor in (*a, *b):
        tensor.nan_to_num_(0, 0, 0)
    for slot, rank in ranks.items():
        for a_slice, b_slice in zip(a, b, strict=True):
            a_slice[slot, :, rank:] = 0
            b_slice[slot, :, :, rank:] = 0
    indices = torch.tensor(case.row_slots)
    own = indices >= 0
    expected, rows = y.clone(), y[own]
    for a_slice, b_slice, offset in zip(a, b, case.offsets, strict=True):
        buffer = torch.zeros(len(rows), case.rank)
        if len(rows):
            bgmv_shrink(x[own], a_slice, buffer, indices[own], case.scale)
            size = b_slice.shape[2]
            bgmv_expand_slice(buffer, b_slice, rows, indices[own], offset, size)
    expected[own] = rows
    add_lora(y, x, a, b, plan(indices), case.scale, case.offsets, ranks)
    assert torch.equal(y, expected)


def test_the_head_as_vllms_own_ops_compute_it(way: str) -> None:
    from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_shrink

    case = Case(11, torch.float32, [3, 0, 1, 3, 2, 0], 4, 8, 16, [97], 0, 1.0)
    y, x, a, b = case.tensors()
    y, indices = y[:, :90].clone(), torch.tensor(case.row_slots)
    expected, buffer = y.clone(), torch.zeros(6, 8)
    bgmv_shrink(x, a[0], buffer, indices, 1.0)
    bgmv_expand(buffer, b[0], expected, indices)
    add_lora(y, x, a, b, plan(indices), 1.0, [0])
    assert torch.equal(y, expected)


@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_embedding(case: Case) -> None:
    y, _, _, b = case.tensors()
    low = torch.randint(-2, 3, (len(y), case.rank)).to(case.dtype)
    expected = y.clone()
    for row, slot in enumerate(case.row_slots):
        if slot >= 0:
            product = (b[0][slot, 0].float() @ low[row].float()).to(case.dtype)
            expected[row, : case.sizes[0]] += product
    add_lora_embedding(y, low, b[0], plan(torch.tensor(case.row_slots)))
    assert torch.equal(y, expected)
