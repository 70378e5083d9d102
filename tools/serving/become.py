"""``serve --exec``: this process becomes tritonserver, and a small one beside it looks after it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from python_backend import presence, runtime
from tools import layout
from tools.serving.life import ANSWER_S, Plan, prepared
from tools.serving.probe import LOOK_EVERY_S
from tools.serving.process import PATIENCE_S


def become(plan: Plan) -> NoReturn:
    """Turns this process into tritonserver, for containers.

    Its log goes to this process's output, signals to it alone. The claim on the state directory
    lasts as long as the server.

    Raises:
        ServerNotFound: there is no tritonserver.
    """
    launch, arguments, _ = prepared(plan)
    server_pid = os.getpid()
    plan.state.hold(server_pid)
    sys.stdout.flush()
    if os.fork() == 0:
        try:
            plan.state.let_go()
            # Ctrl-C in a terminal reaches it as well; it is the server's to follow.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            accompany(plan.state.run, server_pid)
        finally:
            os._exit(0)
    # Python ignores these two, and what is ignored stays so in the next program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # The stub of the wheel ignores PYTHONPATH: it finds our packages from here.
    os.chdir(layout.ROOT)
    os.execve(launch.binary, launch.command(arguments), dict(launch.env))  # noqa: S606


def accompany(run_dir: Path, server_pid: int) -> None:
    """Ends with the server, or ends the server when a part of it is gone.

    Docker restarts what has ended, not what is unhealthy; and Triton goes on with a model's
    process dead. Whoever waits is answered `unavailable` first, then tritonserver gets SIGTERM and,
    where it does not go, SIGKILL. As process 1 of a container it cannot be killed from inside: then
    it is the turn of who asks ``tools health``.

    Args:
        run_dir: the server's runtime directory.
        server_pid: tritonserver's process.
    """
    start, boot_id = runtime.process_start(server_pid), runtime.boot_id(server_pid)

    def lives() -> bool:
        return runtime.process_start(server_pid) == start

    while lives():
        if lost := presence.lost(run_dir, boot_id):
            why = "; ".join(loss.reason for loss in lost)
            print(f"stopping: {why}", file=sys.stderr, flush=True)
            presence.give_up(run_dir, server_pid, why)
            time.sleep(ANSWER_S)
            break
        time.sleep(LOOK_EVERY_S)
    for number, patience_s in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, 1.0)):
        until = time.monotonic() + patience_s
        if lives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(server_pid, number)
        while lives() and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
