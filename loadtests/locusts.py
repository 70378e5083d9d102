"""Locust as a process of its own: headless or with its web page, alone or with workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from loadtests.plan import GRACE_S, ZERO, Plan
from tools import layout
from tools.bench.server import free_ports
from tools.serving.process import end_with_parent, session_members

PLAN = "plan.json"
_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
_LOG = "locust.log"
#: Until it runs, and from the last call's limit to its end, seconds.
_START_S, _END_S = 90.0, 60.0
_STOP_S = 10.0


class LocustFailed(RuntimeError):
    """Locust did not start, did not end, or ended badly; the text holds what it said."""


class Locust:
    """A running locust.

    Args:
        process: it.
        folder: of the results; its log and ``plan.json`` lie there.
        plan: what it sends.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, plan: Plan) -> None:
        self._process, self._folder, self._plan = process, folder, plan

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def zero(self) -> float:
        """When the load began, seconds since the epoch; waits for it.

        Raises:
            LocustFailed: it does not begin.
        """
        path, until = self._folder / ZERO, time.monotonic() + _START_S
        while not path.exists():
            if not self.running or time.monotonic() > until:
                raise LocustFailed(f"locust did not begin: {self.said()}")
            time.sleep(0.1)
        return float(path.read_text("utf-8"))

    def limit_s(self) -> float:
        """Seconds from its beginning within which it must have ended."""
        return self._plan.load.seconds + self._plan.patience_s + GRACE_S + _END_S

    def check(self) -> None:
        """Raises ``LocustFailed`` where it ended badly."""
        if self._process.poll():
            raise LocustFailed(f"locust ended with {self._process.returncode}: {self.said()}")

    def said(self) -> str:
        """The end of its log."""
        return (self._folder / _LOG).read_text("utf-8", "replace")[-1500:]


@contextlib.contextmanager
def locust(plan: Plan, folder: Path, web_port: int | None) -> Iterator[Locust]:
    """Locust with a plan; stopped at the end of the block, and its workers with it.

    Args:
        web_port: of its page on loopback; None: headless.
    """
    (folder / PLAN).write_text(plan.model_dump_json(), "utf-8")
    command = [sys.executable, "-m", "locust", "-f", str(_LOCUSTFILE)]
    command += ["--plan", str((folder / PLAN).resolve()), "--csv", str(folder / "locust")]
    command += ["--exit-code-on-error", "0", "--stop-timeout", "2", "--loglevel", "WARNING"]
    if web_port is None:
        command += ["--headless", "--only-summary"]
    else:
        command += ["--autostart", "--autoquit", "3"]
        command += ["--web-host", "127.0.0.1", "--web-port", str(web_port)]
    if plan.workers > 1:
        port = str(free_ports()[0])
        command += ["--processes", str(plan.workers)]
        command += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port]
        command += ["--master-port", port]
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            command,
            cwd=layout.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(layout.ROOT), "LOCUST_SKIP_URLLIB3_PATCH": "1"},
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            yield Locust(process, folder, plan)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_STOP_S)
    # Its workers are of its session and no longer needed, whatever has become of it.
    for pid in session_members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
