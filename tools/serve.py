"""``tools serve``: a tritonserver with the project's models, from start to stop."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tools import layout, tritonserver
from tools.serving import log
from tools.serving.arguments import Ports, server_arguments
from tools.serving.ports import check_free
from tools.serving.problem import ServeProblem
from tools.serving.process import ServerProcess
from tools.serving.show import Show
from tools.serving.state import StateDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_PORT = {"min": 1, "max": 65535}
#: Seconds between two signs of life where there is no terminal to draw on.
_NEWS_EVERY_S = 10.0


class Signals:
    """Counts the requests to stop: one stops in order, two at once."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._asked)

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


def is_ready(host: str, port: int) -> bool:
    """Whether the server answers that all its models are ready."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - translated
    connection = http.client.HTTPConnection(address, port, timeout=2)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def _progress(console: Console) -> Iterator[object]:
    if not console.is_terminal:
        yield None
        return
    with console.status("starting tritonserver") as status:
        yield status


def _await_ready(server: ServerProcess, follow: log.Follower, stop: Signals, show: Show) -> bool:
    began, told = time.monotonic(), 0.0
    seen: list[str] = []
    with _progress(show.console) as status:
        while stop.count == 0:
            lines = follow.new_lines()
            seen += lines
            show.lines(lines, starting=True)
            if server.exit_code() is not None:
                show.lines(follow.new_lines(), starting=True)
                raise ServeProblem(_why_not_started(server.exit_code(), show.log_path))
            if is_ready(show.host, show.ports.http):
                return True
            waited = time.monotonic() - began
            models = ", ".join(sorted(log.loading(seen)))
            what = f"loading {models}" if models else "starting tritonserver"
            text = f"{what} … {waited:.0f} s"
            if status is not None:
                status.update(text)  # type: ignore[attr-defined]
            elif waited - told >= _NEWS_EVERY_S:
                told = waited
                show.say(text)
            time.sleep(0.2)
    return False


def _why_not_started(code: int | None, path: Path) -> str:
    why = "\n  ".join(log.reason(log.last_lines(path, 2000)))
    return f"tritonserver did not start (exit code {code}):\n  {why}\nthe whole log: {path}"


def _short(path: Path) -> Path:
    """Relative when it lies under the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _run(config: Path, state: StateDirectory, models: Path, show: Show, verbose: bool) -> int:
    prefix = state.new_shm_prefix()
    arguments = server_arguments(
        models=models.absolute(),
        host=show.host,
        ports=show.ports,
        admin_key=state.new_admin_key(),
        shm_prefix=prefix,
        verbose=verbose,
    )
    launch = tritonserver.locate(
        extra_env={
            "LORA_SERVING_CONFIG": str(config.absolute()),
            "LORA_STATE_DIR": str(state.path),
        }
    )
    log.rotate(state.log)
    stop = Signals()
    server = ServerProcess(launch, arguments, state.log, prefix)
    follow = log.Follower(state.log)
    try:
        if _await_ready(server, follow, stop, show):
            show.ready(_short(config.absolute().parent / "keys.json"))
        while stop.count == 0:
            show.lines(follow.new_lines())
            if server.exit_code() is not None:
                last = "\n  ".join(log.last_lines(state.log, 30))
                raise ServeProblem(
                    f"tritonserver died (exit code {server.exit_code()}); its last lines:\n"
                    f"  {last}\nthe whole log: {state.log}"
                )
            time.sleep(0.5)
        show.say("stopping (again to kill) …")
    finally:
        began = time.monotonic()
        in_order = server.stop(hurry=lambda: stop.count > 1)
    how = "stopped" if in_order else "killed: it did not end by itself"
    show.say(f"{how}, {time.monotonic() - began:.1f} s")
    return 0


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
    verbose: Annotated[bool, typer.Option("--verbose", help="The whole log here too.")] = False,
) -> None:
    """Start Triton with the models, say when it is ready, stop it on Ctrl-C or SIGTERM.

    Prints one line `ready http=… grpc=… metrics=…`, then three calls to copy. Exit code 0 when
    stopped, 1 with the reason when the server cannot start or dies.
    """
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
        code = _run(config, state, models, show, verbose)
    except (ServeProblem, tritonserver.ServerNotFound) as problem:
        print(f"error: {problem}", file=sys.stderr)
        code = 1
    sys.stdout.flush()
    raise typer.Exit(code)
