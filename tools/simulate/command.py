"""``python -m tools simulate``."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated

import typer

from python_backend.admission.limits import Limits, Share, fitting_patience
from python_backend.admission.scheduler import Scheduler
from tools.simulate.engine import Chooser, StepCost, simulate
from tools.simulate.fcfs import FirstCome
from tools.simulate.report import Report, report, table
from tools.simulate.workloads import WORKLOADS, Workload

_COST = StepCost()


def command(
    workload: Annotated[str, typer.Argument(help=f"One of {', '.join(WORKLOADS)}.")] = "zipf",
    requests: Annotated[int, typer.Option(min=1)] = 10_000,
    adapters: Annotated[int, typer.Option(min=1)] = 100,
    departments: Annotated[int, typer.Option(min=1)] = 4,
    streams: Annotated[int, typer.Option(min=1, help="Of `thrash`.")] = 64,
    slots: Annotated[int, typer.Option(min=1, help="max_loras")] = 4,
    seats: Annotated[int, typer.Option(min=1, help="max_num_seqs")] = 16,
    rate: Annotated[float, typer.Option(min=1e-6, help="Requests a second.")] = 2.0,
    shortest: Annotated[int, typer.Option(min=1, help="Tokens of prompt and answer.")] = 8,
    longest: Annotated[int, typer.Option(min=1)] = 512,
    cv: Annotated[float, typer.Option(min=1e-3, help="Burstiness; 1 is Poisson.")] = 1.0,
    weights: Annotated[str, typer.Option(help="Of d0, d1, …: 3,1,1")] = "",
    patience: Annotated[int, typer.Option(help="-1: what suits seats and slots.")] = -1,
    burst: Annotated[float, typer.Option(min=0, help="0: no limit.")] = 2.0,
    affinity: int = 0,
    reserve_seats: Annotated[int, typer.Option(min=0)] = 1,
    reserve_slots: Annotated[int, typer.Option(min=0)] = 1,
    step_ms: Annotated[float, typer.Option(help="A step's fixed cost.")] = _COST.fixed_s * 1e3,
    sequence_ms: Annotated[
        float, typer.Option(help="What each sequence adds.")
    ] = _COST.per_sequence_s * 1e3,
    prompt_token_ms: Annotated[
        float, typer.Option(help="What each token of a new prompt adds.")
    ] = _COST.per_prompt_token_s * 1e3,
    switch_ms: Annotated[float, typer.Option(help="What a switch adds.")] = _COST.per_switch_s
    * 1e3,
    seed: int = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Figures go there too.")] = None,
) -> None:
    """Runs the server's own admission, and plain first come, over a simulated engine."""
    if workload not in WORKLOADS:
        raise typer.BadParameter(f"{workload!r}: not one of {', '.join(WORKLOADS)}")
    if longest < shortest:
        raise typer.BadParameter("--longest is below --shortest")
    work = Workload(
        requests=requests,
        adapters=adapters,
        departments=departments,
        rate=rate,
        shortest=shortest,
        longest=longest,
        cv=cv,
        seed=seed,
        streams=streams,
    )
    limits = Limits(
        seats,
        slots,
        reserve_seats=reserve_seats,
        reserve_slots=reserve_slots,
        affinity=affinity,
        patience=fitting_patience(seats, slots) if patience < 0 else patience,
        burst=burst or math.inf,
    )
    numbers = [float(text) for text in weights.split(",") if text]
    shares = {f"d{number}": Share(weight) for number, weight in enumerate(numbers)}
    per_s = 1e-3
    cost = StepCost(
        step_ms * per_s, sequence_ms * per_s, prompt_token_ms * per_s, switch_ms * per_s
    )
    choosers: dict[str, Chooser] = {
        "admission": Scheduler(limits, shares),
        "first come": FirstCome(seats, slots),
    }
    reports: list[Report] = []
    for order, chooser in choosers.items():
        began = time.perf_counter()
        jobs, again = WORKLOADS[workload](work)
        reports.append(report(order, simulate(jobs, chooser, cost, again), chooser))
        took = time.perf_counter() - began
        typer.echo(f"{order}: {requests / took:,.0f} simulated requests a second", err=True)
    typer.echo(table(reports))
    if json_file is not None:
        json_file.write_text(json.dumps([one.as_json() for one in reports], indent=1) + "\n")
