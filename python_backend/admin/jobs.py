"""Long work that an operator has asked for: begun at once, followed by id, kept for a while."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from python_backend.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    Overloaded,
    ServingError,
    Unavailable,
)

log = logging.getLogger(__name__)

#: Jobs that may run at once, and finished ones that are remembered.
MAX_RUNNING, MAX_KEPT = 256, 1000


@dataclasses.dataclass
class Job:
    """One piece of work. Times are seconds of the clock that ``Jobs`` was given."""

    job: str
    op: str
    lora_id: str
    began_s: float
    state: Literal["running", "done", "failed"] = "running"
    #: What it is doing, then what came of it, then the error's message.
    step: str = ""
    result: str = ""
    error: str = ""
    ended_s: float | None = None
    #: Whether it may be cancelled at the moment: nothing has changed yet, or it can be taken back.
    may_cancel: bool = False
    cancelled: bool = False

    def shown(self, now_s: float) -> dict[str, Any]:
        """The job as an operator sees it."""
        seconds = (self.ended_s if self.ended_s is not None else now_s) - self.began_s
        body = dataclasses.asdict(self)
        for name in ("began_s", "ended_s", "may_cancel", "cancelled"):
            del body[name]
        return {**body, "seconds": round(seconds, 3)}


#: The work: is given its job to say what it is doing, returns what came of it.
Work = Callable[[Job], Awaitable[str]]


class Jobs:
    """The jobs of one server; lives on one event loop.

    Args:
        clock: seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_running: int = MAX_RUNNING,
        max_kept: int = MAX_KEPT,
    ) -> None:
        self._clock, self._max_running, self._max_kept = clock, max_running, max_kept
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def running(self) -> int:
        """Jobs under way."""
        return len(self._tasks)

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, op: str, lora_id: str, work: Work) -> Job:
        """Begins ``work``.

        Raises:
            Overloaded: too many jobs are running.
        """
        if len(self._tasks) >= self._max_running:
            raise Overloaded("too many jobs are running.", retry_after=1)
        job = Job(secrets.token_hex(8), op, lora_id, self._clock())
        self._jobs[job.job] = job
        self._forget()
        task = asyncio.get_running_loop().create_task(self._run(job, work))
        self._tasks[job.job] = task
        task.add_done_callback(lambda ended: self._ended(job, ended))
        return job

    def get(self, name: str) -> Job:
        """The job of this id.

        Raises:
            InvalidArgument: there is none, or it ended long ago.
        """
        job = self._jobs.get(name)
        if job is None:
            raise InvalidArgument("job", "there is no such job; old ones are forgotten")
        return job

    def cancel(self, name: str) -> bool:
        """Has a job given up; whether it was, by this call or one before.

        Raises:
            InvalidArgument: there is no such job.
        """
        job = self.get(name)
        task = self._tasks.get(name)
        if task is not None and job.may_cancel and not job.cancelled:
            job.cancelled = True
            task.cancel()
        return job.cancelled

    async def _run(self, job: Job, work: Work) -> None:
        try:
            job.result = await work(job)
            job.state = "done"
        except ServingError as error:
            job.state, job.error = "failed", error.message
        except Exception:
            internal = Internal()
            log.exception("job %s (%s %s), error id %s", job.job, job.op, job.lora_id, internal)
            job.state, job.error = "failed", internal.message

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step never runs.
        if task.cancelled():
            why: ServingError = Unavailable("the server is stopping.")
            if job.cancelled:
                why = Cancelled("an operator cancelled it.")
            job.state, job.error = "failed", why.message
        job.ended_s = self._clock()
        job.step = ""
        del self._tasks[job.job]

    def _forget(self) -> None:
        """Drops the oldest of the finished jobs beyond the limit."""
        spare = len(self._jobs) - self._max_kept
        if spare > 0:
            ended = [name for name, job in self._jobs.items() if job.ended_s is not None]
            for name in ended[:spare]:
                del self._jobs[name]

    async def stop(self) -> None:
        """Cancels what is running and waits for it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
