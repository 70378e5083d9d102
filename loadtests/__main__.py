"""``python -m loadtests``."""

from __future__ import annotations

import datetime
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loadtests import results
from loadtests.faults.kinds import KINDS
from loadtests.problem import LoadProblem
from loadtests.runner import make_house, make_plan, run_scenario
from loadtests.scenario import Options
from loadtests.scenarios import SCENARIOS

app = typer.Typer(
    name="python -m loadtests",
    help="Load tests: scenarios with locust against a server of their own, judged by a budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

ScenarioName = Annotated[str, typer.Argument(help=f"One of {', '.join(SCENARIOS)}.")]
Configuration = Annotated[
    str,
    typer.Option(help="protected; unprotected: all off that can be; without-PROTECTION: one off."),
]
Demo = Annotated[Path, typer.Option(help="A folder of `python -m tools demo`.")]
Seconds = Annotated[float | None, typer.Option(help="How long the load lasts.")]
Rate = Annotated[float | None, typer.Option(help="Open arrivals a second.")]
Users = Annotated[int | None, typer.Option(help="Closed loops.")]
Adapters = Annotated[int | None, typer.Option(help="Adapters of those that are many.")]
Tokens = Annotated[int | None, typer.Option(help="Tokens of an answer.")]
Seed = Annotated[int | None, typer.Option(help="The same seed is the same load.")]

Workers = Annotated[int, typer.Option(min=1, help="Processes that share the load.")]


def _or_refuse(act: Callable[[], object]) -> None:
    try:
        act()
    except (LoadProblem, RuntimeError) as problem:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2) from None


def _size(**given: float | None) -> dict[str, float]:
    return {name: value for name, value in given.items() if value is not None}


@app.command()
def run(
    scenario: ScenarioName,
    configuration: Configuration = "protected",
    out: Annotated[
        Path | None, typer.Option(help="Results; .demo/load/… by scenario and time if not given.")
    ] = None,
    seconds: Seconds = None,
    rate: Rate = None,
    users: Users = None,
    adapters: Adapters = None,
    tokens: Tokens = None,
    seed: Seed = None,
    workers: Workers = 1,
    faults: Annotated[
        str,
        typer.Option(
            help=f"Inject NAME[@SECONDS][+SECONDS],…; all of them: all. Of {', '.join(KINDS)}."
        ),
    ] = "",
    web: Annotated[
        int | None, typer.Option(help="Show locust's page on this port of loopback.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            help="HOST:HTTP,GRPC,METRICS of a server that is there, started from --demo's folder."
        ),
    ] = None,
    demo: Demo = Path(".demo"),
    budget: Annotated[
        Path | None, typer.Option(help="Limits; loadtests/budget.toml if not given.")
    ] = None,
    patience: Annotated[float, typer.Option(min=1, help="Seconds for one answer.")] = 30.0,
) -> None:
    """Run a scenario. Exit code 1: a limit of the budget is missed; 2: it could not be run."""
    # What has been started is stopped also when this is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    now = datetime.datetime.now(datetime.UTC)
    folder = out or Path(".demo/load") / f"{scenario}-{configuration}-{now:%Y%m%dT%H%M%SZ}"
    size = _size(
        seconds=seconds, rate=rate, users=users, adapters=adapters, tokens=tokens, seed=seed
    )
    options = Options(
        configuration=configuration,
        demo=demo,
        size=size,
        workers=workers,
        faults=faults,
        web_port=web,
        server=server,
        budget=budget,
        patience_s=patience,
    )
    _or_refuse(lambda: run_scenario(scenario, options, folder))
    found = results.read_run(folder)
    _show(found, folder)
    raise typer.Exit(int(not found.ok))


@app.command()
def house(
    scenario: ScenarioName,
    folder: Annotated[Path, typer.Argument(help="What is made; empty or not there.")],
    configuration: Configuration = "protected",
    demo: Demo = Path(".demo"),
    seconds: Seconds = None,
    rate: Rate = None,
    adapters: Adapters = None,
) -> None:
    """Make the folder of a scenario's server, to be served elsewhere and loaded with --server."""
    size = _size(seconds=seconds, rate=rate, adapters=adapters)
    options = Options(configuration=configuration, demo=demo, size=size)
    _or_refuse(lambda: make_house(scenario, options, folder))
    typer.echo(f"python -m tools serve --config {folder / 'serving.yaml'}")


@app.command()
def plan(
    scenario: ScenarioName,
    folder: Annotated[Path, typer.Argument(help="Where plan.json goes; empty or not there.")],
    server: Annotated[str, typer.Option(help="HOST:HTTP,GRPC,METRICS of the server.")],
    demo: Demo = Path(".demo"),
    seconds: Seconds = None,
    rate: Rate = None,
    users: Users = None,
    adapters: Adapters = None,
    tokens: Tokens = None,
    seed: Seed = None,
    workers: Workers = 1,
) -> None:
    """Write the plan of a scenario, to run locust by hand: on several machines, for example."""
    size = _size(
        seconds=seconds, rate=rate, users=users, adapters=adapters, tokens=tokens, seed=seed
    )
    _or_refuse(
        lambda: make_plan(
            scenario, Options(server=server, demo=demo, size=size, workers=workers), folder
        )
    )


@app.command("list")
def list_scenarios() -> None:
    """The scenarios, each with a line."""
    table = Table("scenario", "what it shows", box=None)
    for name, scenario in SCENARIOS.items():
        table.add_row(name, scenario.summary)
    Console().print(table)


@app.command()
def merge(
    folder: Annotated[Path, typer.Argument(help="Where requests.<worker>.jsonl have been put.")],
) -> None:
    """Put the workers' requests into one file; of workers on other machines, copy theirs first."""
    typer.echo(f"{results.merge(folder)} requests")


def _show(run: results.Run, folder: Path) -> None:
    table = Table("limit", "measured", "allowed", "samples", "", title=str(folder))
    for verdict in run.budget:
        value = "nothing" if verdict.measured is None else f"{verdict.measured:.4g}"
        mark = "ok" if verdict.ok else "MISSED"
        table.add_row(verdict.name, value, f"{verdict.limit:g}", str(verdict.samples), mark)
    Console().print(table)


if __name__ == "__main__":
    app(prog_name="python -m loadtests")
