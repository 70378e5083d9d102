"""The simulated engine against sums done by hand, and what the simulator says of our order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from python_backend.admission.limits import Limits, Share
from python_backend.admission.scheduler import Scheduler
from tools.simulate.command import command
from tools.simulate.engine import Chooser, Done, Job, StepCost, simulate
from tools.simulate.fcfs import FirstCome
from tools.simulate.report import report
from tools.simulate.workloads import WORKLOADS, Workload

COST = StepCost(fixed_s=1.0, per_sequence_s=0.1, per_prompt_token_s=0.01, per_switch_s=0.5)


def run(jobs: list[Job], seats: int = 2, slots: int = 1) -> list[Done]:
    return list(simulate(iter(jobs), FirstCome(seats, slots), COST))


def test_one_job_by_hand() -> None:
    (done,) = run([Job(2.0, "fin", None, tokens=10, output=3)])
    # The first step reads 10 tokens, two more follow.
    assert (done.first_s, done.end_s) == pytest.approx((3.2, 5.4))


def test_two_jobs_share_steps_by_hand() -> None:
    first, second = run(
        [Job(0.0, "fin", None, tokens=0, output=4), Job(0.5, "fin", None, tokens=0, output=1)]
    )
    # It comes within the first step, and is in the second: 1.1 + 1.2.
    assert (second.job.output, first.job.output) == (4, 1)
    assert (first.first_s, first.end_s) == pytest.approx((2.3, 2.3))
    assert second.end_s == pytest.approx(1.1 + 1.2 + 2 * 1.1)


def test_a_switch_by_hand() -> None:
    chooser = FirstCome(2, 1)
    jobs = [Job(0.0, "fin", adapter, tokens=0, output=1) for adapter in (1, 2)]
    ended = list(simulate(iter(jobs), chooser, COST))
    assert [done.end_s for done in ended] == pytest.approx([1.1, 2.7])
    assert chooser.switches == 1


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_job_ends_once(name: str) -> None:
    work = Workload(requests=500, adapters=20, departments=3, streams=40, longest=40)
    for chooser in (Scheduler(Limits(8, 4, patience=8)), FirstCome(8, 4)):
        jobs, again = WORKLOADS[name](work)
        ended = list(simulate(jobs, chooser, COST, again))
        assert len(ended) == 500
        assert len({id(done.job) for done in ended}) == 500
        assert all(done.job.at_s < done.first_s <= done.end_s for done in ended)


def test_slora_is_a_power_law_and_zipf_is_zipf() -> None:
    work = Workload(requests=50_000, adapters=100)
    jobs, _ = WORKLOADS["zipf"](work)
    used = Counter(job.adapter for job in jobs)
    assert used[0] / 50_000 == pytest.approx(0.19, abs=0.01)
    assert sum(used[n] for n in range(10)) / 50_000 == pytest.approx(0.57, abs=0.01)
    jobs, _ = WORKLOADS["slora"](work)
    chosen = np.array([job.adapter for job in jobs])
    # P(id < x·n) = x^0.1
    assert np.mean(chosen < 50) == pytest.approx(0.5**0.1, abs=0.01)


def test_a_greedy_department_does_not_delay_a_modest_one() -> None:
    """The fairness paper's workload, beyond what the engine can do."""
    work = Workload(requests=3_000, rate=5.0, shortest=32, longest=32)
    worst = {}
    choosers: dict[str, Chooser] = {"ours": Scheduler(Limits(8, 4)), "theirs": FirstCome(8, 4)}
    for name, chooser in choosers.items():
        jobs, again = WORKLOADS["vtc"](work)
        cost = StepCost(fixed_s=0.06, per_sequence_s=0.006)
        rows = report(name, simulate(jobs, chooser, cost, again), chooser).rows
        worst[name] = {row.who: row.ttft_p99 for row in rows}
    assert worst["theirs"]["d0"] > 60
    assert worst["ours"]["d0"] < 2
    assert worst["ours"]["d1"] < 1.3 * worst["theirs"]["d1"]


def test_sixteen_adapters_on_four_slots() -> None:
    rows = {}
    for adapters in (4, 16):
        work = Workload(requests=1_000, adapters=adapters, departments=1, shortest=16, longest=16)
        chooser = Scheduler(Limits(16, 4, patience=12))
        jobs, again = WORKLOADS["thrash"](work)
        rows[adapters] = report("ours", simulate(jobs, chooser, StepCost(), again), chooser).rows[0]
    assert rows[16].tokens_per_s / rows[4].tokens_per_s >= 0.95
    assert rows[16].ttft_p99 / rows[4].ttft_p99 <= 1.3


def test_weights_in_a_closed_loop() -> None:
    work = Workload(requests=4_000, adapters=2, departments=2, streams=64, shortest=8, longest=40)
    chooser = Scheduler(Limits(16, 4), {"d0": Share(3.0)})
    jobs, again = WORKLOADS["thrash"](work)
    service: Counter[str] = Counter()
    for number, done in enumerate(simulate(jobs, chooser, StepCost(), again)):
        if 500 < number < 3_000:  # Both have work all the while.
            service[done.job.department] += done.job.tokens + 2 * done.job.output
    assert service["d0"] / service["d1"] == pytest.approx(3, rel=0.05)


def test_the_command(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    out = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["slora", "--requests", "300", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "admission" in done.output and "first come" in done.output
    first, second = json.loads(out.read_text())
    assert (first["order"], second["order"]) == ("admission", "first come")
    assert first["rows"][0]["requests"] == 300
    assert CliRunner().invoke(app, ["nonsense"]).exit_code == 2
