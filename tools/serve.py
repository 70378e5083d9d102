"""``tools serve``: a tritonserver with the project's models, from start to stop."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tools import layout, tritonserver
from tools.serving.arguments import Ports
from tools.serving.backoff import FAILURES, WINDOW_S, Backoff
from tools.serving.become import become
from tools.serving.life import Plan, Signals, live
from tools.serving.ports import check_free
from tools.serving.problem import ServeProblem, StartCrash
from tools.serving.show import Show
from tools.serving.state import StateDirectory

_PORT = {"min": 1, "max": 65535}


def _run(plan: Plan, backoff: Backoff | None) -> None:
    """Serves until asked to stop.

    Raises:
        ServeProblem: the first start failed, or the server has died and is not started again.
    """
    stop = Signals()
    started = crashed = False
    while True:
        try:
            why = live(plan, stop)
            started = True
        except ServeProblem as problem:
            # What has never run is a wrong setting, and stays one.
            crash = isinstance(problem, StartCrash)
            if not started and not crash:
                raise
            why = str(problem)
            if backoff is None and crash and not crashed:
                # Nothing of ours: worth one more try, also where nobody asked for restarts.
                crashed = True
                plan.show.restarting(why, 0.0)
                continue
        if why is None:
            return
        if backoff is None:
            raise ServeProblem(why)
        delay_s = backoff.after_failure(time.monotonic())
        if delay_s is None:
            raise ServeProblem(
                f"gave up: too many failures within {WINDOW_S / 60:.0f} minutes; the last: {why}"
            )
        plan.show.restarting(why, delay_s)
        if stop.wait(delay_s):
            return


def serve(
    config: Annotated[
        Path, typer.Option(help="serving.yaml: model, adapters, policy, limits.")
    ] = Path(".demo/serving.yaml"),
    http_port: Annotated[int, typer.Option(help="HTTP.", **_PORT)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC.", **_PORT)] = 8001,
    metrics_port: Annotated[int, typer.Option(help="Prometheus metrics.", **_PORT)] = 8002,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback are reachable.")
    ] = "127.0.0.1",
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Keys, logs, audit, staged adapters; 'state' beside the config."),
    ] = None,
    model_repository: Annotated[
        Path | None, typer.Option(help="What Triton loads; by default the project's.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again whenever a part of the server dies.")
    ] = False,
    max_failures: Annotated[
        int, typer.Option(help="With --restart: give up at so many within 10 minutes.", min=1)
    ] = FAILURES,
    replace: Annotated[
        bool, typer.Option("--exec", help="Become tritonserver, its log here: for containers.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="The whole log here too.")] = False,
) -> None:
    """Start Triton with the models, say when it is ready, stop it on Ctrl-C or SIGTERM.

    Prints one line `ready http=… grpc=… metrics=…`, then three calls to copy. Exit code 0 when
    stopped, 1 with the reason when the server cannot start, or when tritonserver, the process of
    one of its models or the engine has died: for a container's restart policy to act on.

    With --restart it acts itself: callers are answered `unavailable`, what is left of the server
    is killed, its shared memory removed, and it starts again after 1 s, 2 s, 4 s … 30 s. Prints
    `restarting: <reason>`, then the `ready` line again. Exit code 1 when it gives up.

    With --exec this process becomes tritonserver: it prints Triton's log and gets the signals
    itself. A small process beside it ends it when a part of it has died; who watches from outside
    asks `python -m tools health`.
    """
    if replace and restart:
        raise typer.BadParameter("what has become tritonserver restarts nothing: without --restart")
    # Prompts pass through the server's shared memory and audit files: for this user only.
    os.umask(0o077)
    try:
        if not config.is_file():
            raise ServeProblem(
                f"--config {config}: no such file; make the demo (make serve, or "
                "python -m tools demo) or name yours"
            )
        models = model_repository or layout.ROOT / "model_repository"
        if not models.is_dir():
            raise ServeProblem(f"--model-repository {models}: no such folder; name one")
        ports = Ports(http_port, grpc_port, metrics_port)
        check_free(host, ports)
        state = StateDirectory(state_dir or config.absolute().parent / "state")
        show = Show(host, ports, state.log, verbose=verbose)
        plan = Plan(config, state, models, show, verbose)
        if replace:
            become(plan)
        _run(plan, Backoff(max_failures) if restart else None)
        code = 0
    except (ServeProblem, tritonserver.ServerNotFound) as problem:
        print(f"error: {problem}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    raise typer.Exit(code)
