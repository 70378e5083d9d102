"""The BLS doors: gate, then engine, as one call whose cancel reaches the engine.

An ensemble never passes a cancel on; these models do. A call takes a thread for as long as it
runs: cheap, since the thread only waits, and bounded per department.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from python_backend import ticket as tickets
from python_backend.errors import Cancelled, Internal, Overloaded, ServingError, Unavailable
from python_backend.messages import Decision
from python_backend.settings import DoorSettings

log = logging.getLogger(__name__)

#: Threads a door may use, whatever the number of departments.
MAX_THREADS = 1024


@dataclasses.dataclass(frozen=True)
class Piece:
    """One response of the engine on its way through: tensors that nobody unpacks."""

    tensors: Any
    final: bool


class Backend(Protocol):
    """The two models behind a door."""

    def decide(self, request: Any) -> Decision:
        """The gate's decision. Raises ``ServingError``."""

    def generate(self, decision: Decision) -> Iterator[Piece]:
        """The engine's responses, the empty first one left out. Raises ``ServingError``."""

    def cancel(self, decision: Decision) -> None:
        """Cancels at the engine what ``decision`` allowed. Raises ``ServingError``."""


class Caller(Protocol):
    """Whoever waits at the door."""

    def send(self, piece: Piece) -> None:
        """One response; the last if it is final."""

    def fail(self, error: ServingError) -> None:
        """An error, and the end."""

    def gone(self) -> bool:
        """Whether the caller has cancelled or left."""


class InFlight:
    """Calls in flight per department. Thread-safe.

    Args:
        limit: most calls of one department at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self.count: dict[str, int] = {}

    def enter(self, department: str) -> None:
        """Takes a place. Raises ``Overloaded`` if the department has all of its own in use."""
        with self._lock:
            if self.count.get(department, 0) >= self._limit:
                raise Overloaded("too many of your requests are in flight.", retry_after=1)
            self.count[department] = self.count.get(department, 0) + 1

    def leave(self, department: str) -> None:
        """Gives the place back."""
        with self._lock:
            self.count[department] -= 1
            if not self.count[department]:
                del self.count[department]


@dataclasses.dataclass
class _Call:
    caller: Caller
    decision: Decision
    cancelled: bool = False


class Door:
    """One door. ``stop`` ends its threads."""

    def __init__(self, backend: Backend, settings: DoorSettings) -> None:
        self._backend = backend
        self._poll_s = settings.cancel_poll_s
        self._in_flight = InFlight(settings.max_in_flight_per_department)
        self._threads = ThreadPoolExecutor(MAX_THREADS, "door")
        self._cancels = ThreadPoolExecutor(4, "cancel")
        self._calls: dict[int, _Call] = {}
        self._submitted = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._watcher.start()

    def submit(self, request: Any, caller: Caller) -> None:
        """Starts a call; returns at once."""
        with self._lock:
            stopped, full = self._stopped.is_set(), self._submitted >= MAX_THREADS
            if not stopped and not full:
                # Counted before the gate has decided: what waits for it holds a thread too.
                self._submitted += 1
                self._threads.submit(self._guard, lambda: self._serve(request, caller), caller)
        if stopped:
            caller.fail(Unavailable("the server is stopping.", retry_after=5))
        elif full:
            caller.fail(Overloaded("too many requests are in flight.", retry_after=1))

    def _guard(self, work: Callable[[], None], caller: Caller) -> None:
        try:
            work()
        except ServingError as error:
            caller.fail(error)
        except Exception:
            internal = Internal()
            log.exception("error id %s", internal.error_id)
            caller.fail(internal)
        finally:
            with self._lock:
                self._submitted -= 1

    def _serve(self, request: Any, caller: Caller) -> None:
        decision = self._backend.decide(request)
        department = tickets.peek(decision.ticket).department
        self._in_flight.enter(department)
        call = _Call(caller, decision)
        with self._lock:
            self._calls[id(call)] = call
        try:
            if self._stopped.is_set():
                raise Cancelled("the request was cancelled.")
            self._pass_on(call)
        finally:
            with self._lock:
                del self._calls[id(call)]
            self._in_flight.leave(department)

    def _pass_on(self, call: _Call) -> None:
        for piece in self._backend.generate(call.decision):
            try:
                call.caller.send(piece)
            except Exception:
                # Nobody can be answered any more: the engine need not go on.
                self._cancel(call)
                raise
            if piece.final:
                return
            if not call.cancelled and call.caller.gone():
                self._cancel(call)
        if call.cancelled:
            raise Cancelled("the request was cancelled.")
        raise Unavailable("the engine ended the request early.", retry_after=5)

    def _cancel(self, call: _Call) -> None:
        with self._lock:
            if call.cancelled:
                return
            call.cancelled = True
        # On a thread of its own: the watcher has others to watch.
        self._cancels.submit(self._send_cancel, call)

    def _send_cancel(self, call: _Call) -> None:
        try:
            self._backend.cancel(call.decision)
        except ServingError as error:
            log.warning("a cancel did not reach the engine: %s", error.message)
        except Exception:
            log.exception("a cancel did not reach the engine")

    def _watch(self) -> None:
        """Finds callers who have left while nothing is being sent to them."""
        while not self._stopped.wait(self._poll_s):
            with self._lock:
                calls = [call for call in self._calls.values() if not call.cancelled]
            for call in calls:
                try:
                    if call.caller.gone():
                        self._cancel(call)
                except Exception:
                    # One caller that cannot be asked must not end the watch over all others.
                    log.exception("a caller could not be asked whether it has gone")

    def stop(self) -> None:
        """Cancels every call in flight and waits for them to end."""
        with self._lock:
            self._stopped.set()
            calls = list(self._calls.values())
        self._watcher.join()
        for call in calls:
            self._cancel(call)
        self._threads.shutdown(wait=True)
        self._cancels.shutdown(wait=True)
