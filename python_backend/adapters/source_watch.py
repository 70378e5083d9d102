"""Waiting for a back end, but no longer than the deadline, and not once nobody wants it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from python_backend.adapters.source_problem import Problem, SourceFailed

T = TypeVar("T")
_STEP_S = 0.1


class Watch:
    """The time that one fetch has.

    Args:
        deadline_s: seconds from now.
        cancel: set when the adapter is no longer wanted.
    """

    def __init__(self, deadline_s: float, cancel: threading.Event) -> None:
        self._end_s, self._cancel = time.monotonic() + deadline_s, cancel

    def check(self) -> None:
        """Returns while there is time.

        Raises:
            SourceFailed: ``source_timed_out`` or ``source_cancelled``.
        """
        if self._cancel.is_set():
            raise SourceFailed(Problem.CANCELLED, "nobody wants it any more")
        if time.monotonic() >= self._end_s:
            raise SourceFailed(
                Problem.TIMED_OUT, "it took too long; raise sources.deadline_s if it is meant"
            )

    def pause(self, seconds: float) -> None:
        """Sleeps, but not beyond the end. Raises as ``check``."""
        self._cancel.wait(max(0.0, min(seconds, self._end_s - time.monotonic())))
        self.check()

    def wait(self, future: Future[T]) -> T:
        """What the future brings. Raises what it raises, or as ``check``."""
        while True:
            try:
                return future.result(timeout=_STEP_S)
            except TimeoutError:
                # A back end's own time-out is one too.
                if future.done():
                    raise
                try:
                    self.check()
                except SourceFailed:
                    future.cancel()
                    raise

    def call(self, work: Callable[[], T]) -> T:
        """``work`` in a thread that is left to itself if it takes too long. Raises as ``wait``.

        Back ends have time-outs of their own, so the thread ends soon after.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="source", daemon=True).start()
        return self.wait(future)
