"""Every kind of fault while a load runs: whom it hurts, what is lost, and that it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests import results
from loadtests.faults import room
from loadtests.faults.beside import RECOVERY_LIMIT_S
from loadtests.runner import run_scenario
from loadtests.scenario import Options

#: What is not used at that moment may go and come: nobody notices.
HARMLESS = ("policy_broken@10+8", "key_rotated@20+8", "root_gone@30+8", "shm_full@40+8")
HARMFUL = ("disk_full@55+12", "kill_engine@85", "kill_tritonserver@135")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_faults_under_load(demo: Any, tmp_path: Path) -> None:
    if (problem := room.unavailable()) is not None:
        pytest.skip(problem)
    size = {"seconds": 190, "rate": 2, "adapters": 6, "tokens": 8}
    options = Options(demo=demo, size=size, faults=",".join([*HARMLESS, *HARMFUL]))
    out = run_scenario("zipf", options, tmp_path / "out")
    run = results.read_run(out)
    faults = {fault.fault: fault for fault in results.faults(out)}
    told = "\n".join(fault.model_dump_json() for fault in faults.values())
    assert run.ok, (told, run.budget)
    for name in (text.partition("@")[0] for text in HARMLESS):
        assert faults[name].down is None, told
    for name in (text.partition("@")[0] for text in HARMFUL):
        down, healed = faults[name].down, faults[name].healed
        assert down is not None and healed is not None and healed <= RECOVERY_LIMIT_S, told
    budget = {verdict.name: verdict for verdict in run.budget}
    assert budget["wrong_routes"].measured == 0
    assert budget["answers that the audit does not know"].measured == 0
    assert budget["answers that the audit does not know"].samples > 150
