"""``tools health``: the probe of a server nobody watches, and what to wait for before its end."""

from __future__ import annotations

import http.client
import time
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from python_backend import lora_metrics, presence, runtime
from python_backend.admission import gauges
from tools.serving.state import PID_FILE
from tools.top.reading import Page

#: Seconds for one question to the server; less than any probe's own limit.
ANSWER_S = 4.0
#: Seconds between two looks at what is under way, and looks in a row that must find nothing:
#: metrics are written some time after what they tell of.
LOOK_EVERY_S, IDLE_LOOKS = 1.0, 2


def ill(state_dir: Path, url: str) -> str | None:
    """Why the server serves no more; None while it does.

    Triton's own answer is not enough: version 24.10 says that a model is ready long after the
    process behind it has been killed. So the records of the models' processes are looked at too.

    Args:
        url: ``http://host:port`` of the server's HTTP.
    """
    if (problem := _asked(f"{url}/v2/health/live")) is not None:
        return problem
    run_dir = state_dir / "run"
    try:
        pid = int((run_dir / PID_FILE).read_text("ascii"))
    except (OSError, ValueError):
        return f"{run_dir / PID_FILE} names no server: is --state-dir the one it was started with?"
    lost = presence.lost(run_dir, runtime.boot_id(pid))
    return "; ".join(loss.reason for loss in lost) or None


def _asked(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S):  # noqa: S310 - ours, http
            return None
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {error}"


def under_way(page: Page) -> float:
    """Sequences that wait or run, and calls into the engine, by a metrics page."""
    names = (gauges.QUEUE_DEPTH, gauges.IN_ENGINE, lora_metrics.ENGINE_REQUESTS)
    return sum(page.one(name) or 0.0 for name in names)


def wait_until_idle(metrics_url: str, limit_s: float) -> float:
    """Waits until nothing is under way, or so long; what is left then.

    Raises:
        OSError, HTTPException: the metrics cannot be read.
    """
    until, quiet = time.monotonic() + limit_s, 0
    while True:
        with urllib.request.urlopen(metrics_url, timeout=ANSWER_S) as answer:  # noqa: S310
            left = under_way(Page.parse(answer.read().decode(), time.monotonic()))
        quiet = 0 if left else quiet + 1
        if quiet == IDLE_LOOKS or time.monotonic() >= until:
            return left
        time.sleep(LOOK_EVERY_S)


def health(
    state_dir: Annotated[Path, typer.Option(help="The server's.")] = Path(".demo/state"),
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="HTTP.", min=1, max=65535)] = 8000,
    metrics_port: Annotated[int, typer.Option(help="Metrics.", min=1, max=65535)] = 8002,
    idle_within: Annotated[
        float | None,
        typer.Option(help="Wait at most so many seconds until no request is under way.", min=0),
    ] = None,
) -> None:
    """Exit code 0 while the server lives, 1 with the reason when a part of it is gone or hangs.

    With --idle-within it waits instead, for a server that gets no new requests and is to be
    stopped: 0 once nothing is under way, 1 when something still is, or it cannot be told.
    """
    if idle_within is None:
        problem = ill(state_dir.absolute(), f"http://{host}:{http_port}")
    else:
        try:
            left = wait_until_idle(f"http://{host}:{metrics_port}/metrics", idle_within)
            problem = f"{left:.0f} still under way after {idle_within:.0f} s" if left else None
        except (OSError, http.client.HTTPException) as error:
            problem = f"the metrics cannot be read: {error}"
    if problem is not None:
        typer.echo(f"ill: {problem}" if idle_within is None else problem, err=True)
        raise typer.Exit(1)
