"""One life of a server: from its start until it is told to stop, or until it can serve no more."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console

from python_backend import presence
from tools import tritonserver
from tools.serving import log
from tools.serving.arguments import server_arguments
from tools.serving.probe import LOOK_EVERY_S, Probe
from tools.serving.problem import ServeProblem, StartCrash
from tools.serving.process import ServerProcess
from tools.serving.show import Show
from tools.serving.state import StateDirectory

#: Seconds between two signs of life where there is no terminal to draw on.
_NEWS_EVERY_S = 10.0
#: Seconds for which Triton may say nothing after every model has started. It waits 10 s for the
#: first sign of a new process; on an overloaded machine that may pass, and it then waits for ever
#: for the process to end, which serves on (seen on Triton 2.51).
HUNG_S = 45.0
#: Seconds that doors and engine get to answer whoever waits, before all of it is killed: they look
#: four times a second.
ANSWER_S = 0.75


class Signals:
    """Counts the requests to stop: one stops in order, two at once."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._asked)

    def _asked(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def wait(self, seconds: float) -> bool:
        """Sleeps so long, or until asked to stop; whether it was asked."""
        until = time.monotonic() + seconds
        while self.count == 0 and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return self.count > 0


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """What every life of a server has in common."""

    config: Path
    state: StateDirectory
    models: Path
    show: Show
    verbose: bool


def prepared(plan: Plan) -> tuple[tritonserver.Launch, list[str], str]:
    """What one start needs: the server, its arguments, the prefix of its shared memory.

    What an earlier server left in the state directory is removed.

    Raises:
        ServerNotFound: there is no tritonserver.
    """
    state, show = plan.state, plan.show
    presence.clear(state.run)
    prefix = state.new_shm_prefix()
    arguments = server_arguments(
        models=plan.models.absolute(),
        host=show.host,
        ports=show.ports,
        admin_key=state.new_admin_key(),
        shm_prefix=prefix,
        verbose=plan.verbose,
    )
    launch = tritonserver.locate(
        extra_env={
            "LORA_SERVING_CONFIG": str(plan.config.absolute()),
            "LORA_STATE_DIR": str(state.path),
        }
    )
    return launch, arguments, prefix


def live(plan: Plan, stop: Signals) -> str | None:
    """Starts a server and stays with it; nothing of it is left afterwards.

    Returns:
        None when asked to stop, else why it served no more.

    Raises:
        ServeProblem: it did not start.
    """
    state, show = plan.state, plan.show
    launch, arguments, prefix = prepared(plan)
    log.rotate(state.log)
    server = ServerProcess(launch, arguments, state.log, prefix)
    state.note_server(server.pid)
    why: str | None = None
    began = time.monotonic()
    try:
        why = _attend(server, plan, stop)
        if why is None:
            show.say("stopping (again to kill) …")
        began = time.monotonic()
    finally:
        # What has lost a part answers nobody any more: there is nothing to wait for.
        in_order = server.stop(hurry=lambda: why is not None or stop.count > 1)
    if why is None:
        how = "stopped" if in_order else "killed: it did not end by itself"
        show.say(f"{how}, {time.monotonic() - began:.1f} s")
    return why


def _attend(server: ServerProcess, plan: Plan, stop: Signals) -> str | None:
    state, show = plan.state, plan.show
    follow = log.Follower(state.log)
    if _await_ready(server, follow, stop, plan):
        show.ready(_short(plan.config.absolute().parent / "keys.json"))
    server.note_shared_memory()
    probe = Probe(
        state.run, server.pid, server.exit_code, lambda: is_ready(show.host, show.ports.http)
    )
    while not stop.wait(LOOK_EVERY_S):
        show.lines(follow.new_lines())
        if (why := probe.look()) is not None:
            if server.exit_code() is None:
                presence.give_up(state.run, server.pid, why)
                time.sleep(ANSWER_S)
                return why
            last = "\n  ".join(log.last_lines(state.log, 30))
            return f"{why}; its last lines:\n  {last}\nthe whole log: {state.log}"
    return None


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[object]:
    if not console.is_terminal:
        yield None
        return
    with console.status("starting tritonserver") as status:
        yield status


def _await_ready(server: ServerProcess, follow: log.Follower, stop: Signals, plan: Plan) -> bool:
    show = plan.show
    began, told = time.monotonic(), 0.0
    hung = Hung(_python_models(plan.models))
    seen: list[str] = []
    with _progress(show.console) as status:
        while stop.count == 0:
            lines = follow.new_lines()
            seen += lines
            show.lines(lines, starting=True)
            if server.exit_code() is not None:
                show.lines(follow.new_lines(), starting=True)
                raise _not_started(server.exit_code() or 0, show.log_path)
            if is_ready(show.host, show.ports.http):
                return True
            if hung.look(presence.announced(plan.state.run), time.monotonic()):
                raise StartCrash(
                    "tritonserver lost sight of a model that has started; the machine is "
                    f"overloaded\nthe whole log: {show.log_path}"
                )
            waited = time.monotonic() - began
            models = ", ".join(sorted(log.loading(seen)))
            what = f"loading {models}" if models else "starting tritonserver"
            if adapters := log.warming(seen):
                what += f", adapters {adapters}"
            text = f"{what} … {waited:.0f} s"
            if status is not None:
                status.update(text)  # type: ignore[attr-defined]
            elif waited - told >= _NEWS_EVERY_S:
                told = waited
                show.say(text)
            time.sleep(0.2)
    return False


class Hung:
    """Whether every model has started and Triton has not noticed. Pure: time is an argument.

    Args:
        models: the models that leave a record once they have started.
    """

    def __init__(self, models: frozenset[str]) -> None:
        self._models = models
        self._since_s: float | None = None

    def look(self, announced: set[str], now_s: float) -> bool:
        """Whether that has been so for ``HUNG_S``; ``now_s`` is a monotonic clock, seconds."""
        if not self._models or not self._models <= announced:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        return self._since_s is not None and now_s - self._since_s >= HUNG_S


def _python_models(repository: Path) -> frozenset[str]:
    return frozenset(path.parts[-3] for path in repository.glob("*/*/model.py"))


def _not_started(code: int, path: Path) -> ServeProblem:
    why = "\n  ".join(log.reason(log.last_lines(path, 2000)))
    text = f"tritonserver did not start (exit code {code}):\n  {why}\nthe whole log: {path}"
    return StartCrash(text) if code < 0 else ServeProblem(text)


def _short(path: Path) -> Path:
    """Relative when it lies under the current folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
