"""``python -m tools top``."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tools.top.reading import Page, figures
from tools.top.screen import screen

_LIMIT_S = 5.0
_MAX_BYTES = 32 << 20


def top(
    address: Annotated[
        str, typer.Option("--metrics", help="Address of the metrics endpoint.")
    ] = "127.0.0.1:8002",
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then the end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, one object a look.")] = False,
) -> None:
    """Departments, queue, adapters, signals and breakers of a running server, live."""
    console = Console()
    before: Page | None = None
    try:
        if once or as_json:
            while True:
                page = look(address)
                shown = figures(page, before)
                if as_json:
                    typer.echo(json.dumps(shown, separators=(",", ":")))
                else:
                    console.print(screen(shown))
                if once:
                    return
                before = page
                time.sleep(every)
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                try:
                    page = look(address)
                except OSError as error:
                    live.update(Text(_problem(address, error), "red"), refresh=True)
                else:
                    live.update(screen(figures(page, before)), refresh=True)
                    before = page
                time.sleep(every)
    except OSError as error:
        typer.echo(_problem(address, error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        return


def look(address: str) -> Page:
    """The server's metrics now.

    Raises:
        OSError: it does not answer, or not with metrics.
    """
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=_LIMIT_S) as answer:
        return Page.parse(answer.read(_MAX_BYTES).decode("utf-8", "replace"), time.monotonic())


def _problem(address: str, error: OSError) -> str:
    reason = getattr(error, "reason", None) or error
    return f"no metrics at {address} ({reason}): is the server up, and is this its metrics port?"
