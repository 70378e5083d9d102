"""``python -m tools doctor``."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from python_backend.settings import CONFIG_VARIABLE, STATE_VARIABLE
from tools.doctor import gather
from tools.doctor.checks import CHECKS, run
from tools.doctor.facts import Facts
from tools.doctor.finding import Finding, Result
from tools.serving.arguments import Ports

_STYLES = {
    Result.OK: "green",
    Result.ADVICE: "cyan",
    Result.WARNING: "yellow",
    Result.FAILURE: "bold red",
}
_PORT = {"min": 1, "max": 65535}


def doctor(
    config: Annotated[
        Path, typer.Option(help="serving.yaml, as for serve.", envvar=CONFIG_VARIABLE)
    ] = Path(".demo/serving.yaml"),
    state_dir: Annotated[
        Path | None, typer.Option(help="As for serve.", envvar=STATE_VARIABLE)
    ] = None,
    host: Annotated[str, typer.Option(help="Address that will be listened on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="HTTP.", **_PORT)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC.", **_PORT)] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Prometheus metrics.", **_PORT)] = 8002,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Leave a check out, such as ports beside a running server; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Look at machine, packages, settings, model, adapters: what stands in the way of serving.

    Each finding has a result (ok, advice, warning, failure), the reason and the cure. Starts
    nothing and changes nothing. Exit code 0: nothing stands in the way; 1: a failure; 2: wrong
    usage.
    """
    skipped = set(skip or ())
    if strangers := sorted(skipped - CHECKS.keys()):
        print(f"error: --skip {strangers[0]}: no such check; {', '.join(CHECKS)}", file=sys.stderr)
        raise typer.Exit(2)
    facts = gather.gather(
        config,
        host=host,
        ports=None if "ports" in skipped else Ports(http_port, grpc_port, metrics_port),
        state_dir=state_dir,
        environment=os.environ,
    )
    findings = run(facts, skipped)
    if as_json:
        print(json.dumps(as_data(facts, findings), indent=2))
    else:
        show(findings, Console(highlight=False, soft_wrap=True))
    raise typer.Exit(int(worst(findings) is Result.FAILURE))


def worst(findings: list[Finding]) -> Result:
    """The worst result among them."""
    order = list(Result)
    return max((finding.result for finding in findings), key=order.index, default=Result.OK)


def as_data(facts: Facts, findings: list[Finding]) -> dict[str, Any]:
    """For programs: the worst result, how many of each, the findings, and what NVML said."""
    return {
        "result": worst(findings),
        "counts": {result: sum(f.result is result for f in findings) for result in Result},
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "gpus": dataclasses.asdict(facts.gpus),
    }


def show(findings: list[Finding], console: Console) -> None:
    """A line for each finding, its cure below, and a count."""
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        line = Text(f"{finding.result:8}", _STYLES[finding.result])
        line.append(f"{finding.check:{width}}  {finding.reason}", "")
        console.print(line)
        if finding.cure:
            console.print(Text(f"{'':{8 + width}}  → {finding.cure}", "dim"))
    counts = {result: sum(f.result is result for f in findings) for result in Result}
    console.print(", ".join(f"{count} {result}" for result, count in counts.items()))
