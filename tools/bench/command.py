"""``python -m tools bench <scenario>``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.table import Table

from tools.bench import everything
from tools.bench.figures import EngineScenario
from tools.bench.scenario import Options, Result, Scenario

#: Name → module with ``run(options) -> Result``, and a line of help.
SCENARIOS: dict[str, tuple[str, str]] = {
    "admission": ("tools.bench.admission", "What admission costs a request, 10,000 queued."),
    "gate": ("tools.bench.gate", "A gate's decision, with few and with many principals."),
    "doors": ("tools.bench.doors", "What each door adds to a direct call of the engine."),
}

#: The same for what needs the real engine: a module with ``measure(demo, quick) -> Figures``.
ENGINE_SCENARIOS: dict[str, tuple[str, str]] = {
    "adapters": ("tools.bench.adapters", "Many adapters, cold ones arriving, what stays behind."),
    "distribution": (
        "tools.bench.distribution",
        "Distributions mixed in lockstep: how exact, and what three parts cost.",
    ),
    "fusion": ("tools.bench.fusion", "Mixtures: how exact, how soon made, and at what speed."),
    "isolation": ("tools.bench.isolation", "One department while another keeps 48 streams busy."),
    "kernels": ("tools.bench.kernels", "Adapters beside the base model on a CPU."),
    "signals": ("tools.bench.signals", "What watching the engine costs, and a scrape."),
    "speed": ("tools.bench.speed", "Our server beside raw AsyncLLM and vllm serve."),
    "zipf": ("tools.bench.zipf", "100 and 1,000 adapters under Zipf(1.0), over 16."),
    "switching": ("tools.bench.switching", "Many adapters over few slots, with us and without."),
}

#: Those that start no server and load few adapters: all of them take five minutes.
SHORT = ("admission", "gate", "doors", "kernels")

app = typer.Typer(
    help="Measure parts of the product in process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def _group() -> None:
    # With a callback typer keeps the command's name even while there is only one command.
    pass


def _show(result: Result) -> None:
    table = Table(title=result.scenario, title_justify="left")
    for column in ("case", "calls", "p50 µs", "p99 µs", "mean µs"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in result.cases:
        table.add_row(
            case.name,
            str(case.calls),
            f"{case.p50_us:.1f}",
            f"{case.p99_us:.1f}",
            f"{case.mean_us:.1f}",
        )
    console = Console()
    console.print(table)
    for text, held in result.checks.items():
        console.print(f"{'ok' if held else 'MISSED'}: {text}", highlight=False)


def _command(module: str) -> Callable[..., None]:
    def run(
        rounds: Annotated[int, typer.Option(min=100, help="Timed calls of each case.")] = 5000,
        as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    ) -> None:
        scenario = cast(Scenario, import_module(module))
        result = scenario.run(Options(rounds=rounds))
        if as_json:
            print(json.dumps(dataclasses.asdict(result)))
        else:
            _show(result)
        raise typer.Exit(int(not all(result.checks.values())))

    return run


def _engine_command(module: str) -> Callable[..., None]:
    def run(
        demo: Annotated[Path, typer.Option(help="A folder that `tools demo` has made.")] = Path(
            ".demo"
        ),
        quick: Annotated[bool, typer.Option(help="Fewer samples: minutes, not an hour.")] = False,
        as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    ) -> None:
        # What a benchmark has started is stopped also when it is told to end.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        scenario = cast(EngineScenario, import_module(module))
        figures = asyncio.run(scenario.measure(demo, quick=quick))
        if as_json:
            print(json.dumps(figures.as_json()))
        else:
            figures.show()
        raise typer.Exit(int(not figures.held))

    return run


@app.command("all")
def run_all(
    demo: Annotated[Path, typer.Option(help="A folder that `tools demo` has made.")] = Path(
        ".demo"
    ),
    out: Annotated[Path, typer.Option(help="Where a plot and JSON of each go.")] = Path(
        ".cache/bench"
    ),
    only: Annotated[list[str] | None, typer.Option(help="This one; may be repeated.")] = None,
    limit_s: Annotated[float, typer.Option(help="Seconds after which one is stopped.")] = 1200.0,
    quick: Annotated[bool, typer.Option(help=f"Only {', '.join(SHORT)}: 5 minutes.")] = False,
    full: Annotated[bool, typer.Option(help="As many samples as each takes alone: hours.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Every scenario in turn, with few samples: half an hour.

    Exit code 1 where one failed or missed a promise.
    """
    known = [*SCENARIOS, *ENGINE_SCENARIOS]
    if unknown := sorted({*(only or ())} - {*known}):
        raise typer.BadParameter(f"{unknown[0]}; there are {', '.join(known)}", param_hint="--only")
    # What a benchmark has started is stopped also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(stderr=True)

    def one(name: str) -> everything.Ran:
        if name in SCENARIOS:
            arguments = [] if full else ["--rounds", "1000"]
        else:
            arguments = ["--demo", str(demo), *([] if full else ["--quick"])]
        return everything.run_one(name, arguments, limit_s)

    found = everything.run_all(
        [name for name in known if name in (only or (SHORT if quick else known))],
        one,
        out,
        lambda line: console.print(line, highlight=False, markup=False),
    )
    if as_json:
        print(json.dumps({ran.name: dataclasses.asdict(ran) for ran in found}))
    else:
        table = Table("scenario", "seconds", "outcome", title=f"written to {out}")
        for ran in found:
            table.add_row(ran.name, f"{ran.seconds:.0f}", ran.verdict)
        Console().print(table)
    raise typer.Exit(int(any(ran.body is None or ran.missed for ran in found)))


for _name, (_module, _help) in SCENARIOS.items():
    app.command(_name, help=f"{_help} Exit code 1 where a promise is missed.")(_command(_module))
for _name, (_module, _help) in ENGINE_SCENARIOS.items():
    app.command(_name, help=f"{_help} Exit code 1 where a promise is missed.")(
        _engine_command(_module)
    )
