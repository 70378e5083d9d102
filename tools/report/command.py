"""``python -m tools report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadtests.problem import LoadProblem
from loadtests.scenario import Options
from tools.report.build import build
from tools.report.figures import Report
from tools.report.page import render
from tools.report.reading import ReportProblem
from tools.report.running import both, sizes
from tools.report.sizing import Wish
from tools.simulate.engine import StepCost

_COST = StepCost()
_ABOVE_0 = 1e-6


def report(
    before: Annotated[Path | None, typer.Argument(help="Results folder of the run before.")] = None,
    after: Annotated[Path | None, typer.Argument(help="Results folder of the run after.")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Run this scenario of loadtests, unprotected and protected, instead."),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="With --run: also without each protection alone.")
    ] = False,
    size: Annotated[
        list[str] | None,
        typer.Option(help="With --run: seconds=60, rate=2, users=…, adapters=…, … Repeatable."),
    ] = None,
    faults: Annotated[
        str, typer.Option(help="With --run: faults to inject into each, as of loadtests.")
    ] = "",
    demo: Annotated[Path, typer.Option(help="With --run: a folder of `tools demo`.")] = Path(
        ".demo"
    ),
    out: Annotated[Path, typer.Option(help="report.html and report.json go there.")] = Path(
        ".demo/report"
    ),
    without: Annotated[
        list[Path] | None,
        typer.Option(help="A run of the same trace with a protection off: its cost. Repeatable."),
    ] = None,
    goal: Annotated[
        float, typer.Option(help="P99 to the first token to hold, seconds.", min=_ABOVE_0)
    ] = 1.0,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second to hold it at; the trace's.", min=_ABOVE_0),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Of one server, in your currency.", min=0)
    ] = None,
    seats: Annotated[int | None, typer.Option(help="max_num_seqs; the run's.", min=1)] = None,
    slots: Annotated[int | None, typer.Option(help="max_loras; the run's.", min=1)] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Of each simulated prompt.", min=1)] = 32,
    fit: Annotated[
        bool, typer.Option(help="Stretch the costs until tokens come as far apart as in the run.")
    ] = True,
    step_ms: Annotated[float, typer.Option(help="A step's fixed cost.", min=0)] = (
        _COST.fixed_s * 1e3
    ),
    sequence_ms: Annotated[float, typer.Option(help="What each sequence adds.", min=0)] = (
        _COST.per_sequence_s * 1e3
    ),
    prompt_token_ms: Annotated[
        float, typer.Option(help="What each token of a new prompt adds.", min=0)
    ] = _COST.per_prompt_token_s * 1e3,
    switch_ms: Annotated[float, typer.Option(help="What a switch adds.", min=0)] = (
        _COST.per_switch_s * 1e3
    ),
) -> None:
    """Two configurations on the same trace, beside each other: one HTML page, and its JSON.

    How many servers hold the goal comes from `python -m tools simulate`'s engine, whose step costs
    are those of the demo's model on two CPU cores: give your own.
    """
    per_s = 1e-3
    cost = StepCost(
        step_ms * per_s, sequence_ms * per_s, prompt_token_ms * per_s, switch_ms * per_s
    )
    wish = Wish(
        goal_s=goal,
        rate=rate,
        price_per_hour=price_per_hour,
        seats=seats,
        slots=slots,
        prompt_tokens=prompt_tokens,
        fit=fit,
        cost=cost,
    )
    try:
        if run is not None:
            options = Options(demo=demo, size=sizes(size or ()), faults=faults)
            before, after, more = both(run, options, out, each)
            without = [*(without or ()), *more]
        if before is None or after is None:
            raise ReportProblem("name two results folders, or --run SCENARIO")
        written = write(build(before, after, without or (), wish), out)
    except (ReportProblem, LoadProblem) as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2) from None
    typer.echo("\n".join(str(path) for path in written))


def write(made: Report, out: Path) -> tuple[Path, Path]:
    """Writes ``report.json`` and ``report.html``.

    Raises:
        ReportProblem: the folder cannot be written.
    """
    paths = out / "report.json", out / "report.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(made.model_dump_json(indent=1) + "\n", "utf-8")
        paths[1].write_text(render(made), "utf-8")
    except OSError as error:
        raise ReportProblem(f"--out {out}: {error.strerror} ({error.filename})") from None
    return paths
