"""The formula of the memory plan against what the engine allocates, to the byte."""

from __future__ import annotations

import pytest

from python_backend.engine import fitting, record
from tests.contract.rigs import DEMO, SLOTS, VllmRig


@pytest.mark.server
def test_slots_are_as_large_as_planned(vllm_rig: VllmRig) -> None:
    found = record.RecordFile(record.path_of(vllm_rig.engine._flag_path.parent, 0)).read()
    assert found is not None
    model, _ = fitting.read(DEMO / "model", "float32")
    assert found.slot_bytes == model.slot_bytes(vllm_rig.info.target.max_rank) * SLOTS
    assert len(found.slots) == SLOTS
