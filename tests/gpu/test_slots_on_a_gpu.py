"""What switching adapters does to a GPU's memory, with torch alone: no vLLM is needed, a GPU is."""

from __future__ import annotations

import pytest
import torch

from python_backend.engine import trimming
from python_backend.engine.observe import device_memory

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU that torch can use"
)

SLOTS, RANK, WIDTH = 4, 16, 4096


def on(device: str) -> torch.device:
    return torch.device(device, torch.cuda.current_device())


def test_a_switch_copies_pinned_weights_into_a_slot_and_allocates_nothing() -> None:
    """As vLLM's layers do it: a slot is zeroed, then filled from pinned host memory."""
    slots = torch.zeros(SLOTS, 1, RANK, WIDTH, dtype=torch.bfloat16, device=on("cuda"))
    adapters = [
        torch.full((8, WIDTH), float(number), dtype=torch.bfloat16).pin_memory()
        for number in range(16)
    ]
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    reserved = device_memory()[1]
    for turn in range(200):
        slot = turn % SLOTS
        slots[slot] = 0
        slots[slot, 0, :8, :WIDTH].copy_(adapters[turn % 16], non_blocking=True)
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert device_memory()[1] == reserved
    held = [slots[slot, 0, :8].unique().tolist() for slot in range(SLOTS)]
    assert held == [[float((196 + slot) % 16)] for slot in range(SLOTS)]
    assert slots[:, 0, 8:].count_nonzero() == 0


def test_pinned_weights_that_are_dropped_during_a_copy_arrive_whole() -> None:
    """An adapter may leave the host cache while its copy into a slot is still under way."""
    slot = torch.zeros(64, 1 << 20, dtype=torch.bfloat16, device=on("cuda"))
    for number in range(1, 20):
        weights = torch.full(slot.shape, float(number), dtype=torch.bfloat16).pin_memory()
        slot.copy_(weights, non_blocking=True)
        del weights
        torch.empty(slot.shape, dtype=torch.bfloat16).pin_memory().fill_(-1.0)
        torch.cuda.synchronize()
        assert slot.unique().tolist() == [float(number)]


def test_churn_is_seen_as_fragmentation_and_trimming_gives_it_back() -> None:
    blocks = [torch.empty(3 << 20, dtype=torch.uint8, device=on("cuda")) for _ in range(64)]
    allocated, reserved, _ = device_memory()
    assert allocated >= 64 * (3 << 20)
    del blocks[1::2]
    torch.cuda.synchronize()
    less, still, _ = device_memory()
    assert less <= allocated - 32 * (3 << 20)
    assert still == reserved
    blocks.clear()
    trimming.trim(on("cuda"))
    assert device_memory()[1] < reserved
