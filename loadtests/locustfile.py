"""What locust runs: ``locust -f loadtests/locustfile.py --plan FOLDER/plan.json``.

``python -m loadtests run`` makes the plan and calls this. It works headless and with the web page,
in one process, with ``--processes``, and as ``--master`` and ``--worker`` on several machines.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from locust import LoadTestShape, User, events, task
from locust.runners import MasterRunner, WorkerRunner

from loadtests import doors
from loadtests.plan import GRACE_S, ZERO, Plan
from loadtests.sending import Sender

#: How long locust may take to hear of the last calls of its workers, seconds.
REPORTS_S = 7.0
#: A caller waits so long before he comes back to a server that is away, seconds.
AWAY_S = 0.5
#: This process's own; locust gives some events none.
ENVIRONMENT: list[Any] = []
EXIT_CODE: list[int] = []


class _PlannedUser(User):  # type: ignore[misc]  # locust has no types here
    """Goes round one of the plan's loops."""

    abstract = True
    door = ""

    def on_start(self) -> None:
        """Chooses the loop."""
        self._sender: Sender = self.environment.sender
        self._loop = self._sender.loop_of(self.door)
        self._next = 0

    @task
    def one(self) -> None:
        """The next call of the loop."""
        if self._sender.over or not self._loop:
            gevent.sleep(0.5)
            return
        call = self._loop[self._next % len(self._loop)]
        self._next += 1
        if self._sender.send(call) in ("transport", "unavailable"):
            # Nobody is there, and said so at once: as callers do who are told when to come back.
            gevent.sleep(AWAY_S)


class GrpcStreamUser(_PlannedUser):
    """tritonclient's gRPC stream."""

    door = "grpc_stream"


class HttpStreamUser(_PlannedUser):
    """``/generate_stream``."""

    door = "http_stream"


class UnaryUser(_PlannedUser):
    """``/infer``."""

    door = "unary"


class PlannedShape(LoadTestShape):  # type: ignore[misc]
    """As many users as the plan says; the end, once the last call has ended."""

    def tick(self) -> tuple[int, float] | None:
        """See ``LoadTestShape``."""
        environment = self.runner.environment
        plan: Plan = environment.sender.plan
        now = self.get_run_time()
        late = now - plan.load.seconds
        shape = plan.load.shape
        if late < 0:
            users = shape.at(now)
            return users, max(1.0, users)
        waited = REPORTS_S if isinstance(self.runner, MasterRunner) else 0.0
        if late > plan.patience_s + GRACE_S + waited:
            return None
        if (
            late > waited
            and environment.sender.open + sum(environment.open_elsewhere.values()) == 0
        ):
            return None
        users = shape.at(plan.load.seconds - 0.001)
        return users, max(1.0, users)


@events.init_command_line_parser.add_listener
def _add_plan(parser: Any) -> None:
    parser.add_argument(
        "--plan", default="", include_in_web_ui=False, help="plan.json; records go beside it."
    )


@events.init.add_listener
def _set_up(environment: Any, **_: Any) -> None:
    # Only now: locust forks its worker processes before, and gRPC does not survive a fork.
    doors.ready_grpc()
    path = Path(environment.parsed_options.plan)
    plan = Plan.model_validate_json(path.read_bytes())
    environment.sender = Sender(plan, path.parent, environment.events.request.fire)
    environment.open_elsewhere = {}
    ENVIRONMENT.append(environment)
    used = [str(loop[0].user) for loop in plan.load.loops]
    for kind in (GrpcStreamUser, HttpStreamUser, UnaryUser):
        kind.weight = used.count(kind.door)
    wanted = [kind for kind in environment.user_classes if kind.weight]
    if not wanted:
        # Locust wants a class, though nobody of it is called.
        GrpcStreamUser.weight = 1
        wanted = [GrpcStreamUser]
    environment.user_classes = wanted


@events.test_start.add_listener
def _begin(environment: Any, **_: Any) -> None:
    runner, sender = environment.runner, environment.sender
    if not isinstance(runner, WorkerRunner):
        path = Path(environment.parsed_options.plan).with_name(ZERO)
        part = path.with_suffix(".part")
        part.write_text(f"{time.time():.6f}\n", "utf-8")
        part.replace(path)
    if not isinstance(runner, MasterRunner):
        sender.begin(runner.worker_index if isinstance(runner, WorkerRunner) else 0)


@events.report_to_master.add_listener
def _report(data: dict[str, Any], client_id: str, **_: Any) -> None:
    data["open"] = ENVIRONMENT[0].sender.open


@events.worker_report.add_listener
def _reported(client_id: str, data: dict[str, Any], **_: Any) -> None:
    ENVIRONMENT[0].open_elsewhere[client_id] = data.get("open", 0)


@events.quit.add_listener
def _end(exit_code: int, **_: Any) -> None:
    for environment in ENVIRONMENT:
        environment.sender.end()
    EXIT_CODE.append(exit_code)


def _leave() -> None:
    """Ends the process once all is written.

    Python would still close gRPC's channels, one by one, and wait for what is left of them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_CODE[-1] if EXIT_CODE else 1)


# What is registered later, such as locust's end of its workers, runs before it.
atexit.register(_leave)
