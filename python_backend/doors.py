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
#: Seconds within which a cancelled call ends when the door stops.
STOP_LIMIT_S = 10.0
#: Seconds after which a caller may try a server that has lost a part: about what a restart takes.
RETRY_S = 30


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


class _Call:
    """One call at the door: however many threads try to end it, it ends once."""

    def __init__(self, caller: Caller) -> None:
        self._caller, self._lock = caller, threading.Lock()
        self.ended = self.cancelled = False
        self.decision: Decision | None = None

    def send(self, piece: Piece) -> None:
        with self._lock:
            if not self.ended:
                self._caller.send(piece)
                self.ended = piece.final

    def fail(self, error: ServingError) -> None:
        with self._lock:
            if not self.ended:
                self.ended = True
                self._caller.fail(error)

    def gone(self) -> bool:
        with self._lock:
            return not self.ended and self._caller.gone()


class Door:
    """One door. ``stop`` ends its calls.

    Args:
        lost: why the models behind the door cannot answer any more; empty while they can. A call
            into a model whose process was killed never returns, so the door asks, and answers
            whoever waits itself.
    """

    def __init__(
        self, backend: Backend, settings: DoorSettings, lost: Callable[[], str] = lambda: ""
    ) -> None:
        self._backend = backend
        self._poll_s = settings.cancel_poll_s
        self._in_flight = InFlight(settings.max_in_flight_per_department)
        self._cancels = ThreadPoolExecutor(4, "cancel")
        self._calls: set[_Call] = set()
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._ask_lost, self._lost = lost, ""
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._watcher.start()

    @property
    def ready(self) -> bool:
        """Whether the models behind the door live."""
        return not self._lost

    def submit(self, request: Any, caller: Caller) -> None:
        """Starts a call; returns at once."""
        call = _Call(caller)
        with self._changed:
            stopped, full = self._stopped.is_set(), len(self._calls) >= MAX_THREADS
            if not stopped and not full:
                self._calls.add(call)
        if stopped:
            call.fail(Unavailable("the server is stopping.", retry_after=5))
            return
        if full:
            call.fail(Overloaded("too many requests are in flight.", retry_after=1))
            return
        # Not of a pool: a thread that a dead model has caught must not keep this process alive.
        threading.Thread(target=self._run, args=(request, call), name="door", daemon=True).start()

    def _run(self, request: Any, call: _Call) -> None:
        try:
            if self._lost:
                raise _unavailable()
            self._serve(request, call)
        except ServingError as error:
            call.fail(error)
        except Exception:
            internal = Internal()
            log.exception("error id %s", internal.error_id)
            call.fail(internal)
        finally:
            with self._changed:
                self._calls.discard(call)
                self._changed.notify_all()

    def _serve(self, request: Any, call: _Call) -> None:
        call.decision = self._backend.decide(request)
        if call.ended:
            return
        department = tickets.peek(call.decision.ticket).department
        try:
            self._enter(department)
        except ServingError as error:
            # The gate has audited its decision: the engine, told of the end, audits that. On this
            # thread, so that a flood of refusals cannot pile up cancels.
            call.fail(error)
            self._send_cancel(call.decision)
            return
        try:
            self._pass_on(call, call.decision)
        finally:
            self._in_flight.leave(department)

    def _enter(self, department: str) -> None:
        if self._stopped.is_set():
            raise Cancelled("the request was cancelled.")
        self._in_flight.enter(department)

    def _pass_on(self, call: _Call, decision: Decision) -> None:
        for piece in self._backend.generate(decision):
            try:
                call.send(piece)
            except Exception:
                # Nobody can be answered any more: the engine need not go on.
                self._cancel(call)
                raise
            if call.ended:
                return
            if not call.cancelled and call.gone():
                self._cancel(call)
        if call.cancelled:
            raise Cancelled("the request was cancelled.")
        raise Unavailable("the engine ended the request early.", retry_after=5)

    def _cancel(self, call: _Call) -> None:
        with self._changed:
            if call.cancelled or call.decision is None:
                return
            call.cancelled = True
        # On a thread of its own: the watcher has others to watch.
        self._cancels.submit(self._send_cancel, call.decision)

    def _send_cancel(self, decision: Decision) -> None:
        try:
            self._backend.cancel(decision)
        except ServingError as error:
            log.warning("a cancel did not reach the engine: %s", error.message)
        except Exception:
            log.exception("a cancel did not reach the engine")

    def _watch(self) -> None:
        """Finds callers who have left while nothing is sent to them, and models that have died."""
        while not self._stopped.wait(self._poll_s):
            with self._changed:
                calls = [call for call in self._calls if not call.ended]
            lost = self._find_lost()
            for call in calls:
                try:
                    if lost:
                        call.fail(_unavailable())
                    elif not call.cancelled and call.gone():
                        self._cancel(call)
                except Exception:
                    # One caller that cannot be asked must not end the watch over all others.
                    log.exception("a caller cannot be asked or answered")

    def _find_lost(self) -> str:
        lost = self._ask_lost()
        if lost and not self._lost:
            log.error("%s; every call at this door is answered `unavailable`", lost)
        self._lost = lost
        return lost

    def stop(self) -> None:
        """Cancels every call in flight and waits for them to end, but not for what never will."""
        with self._changed:
            self._stopped.set()
            calls = list(self._calls)
        self._watcher.join()
        for call in calls:
            if self._lost:
                call.fail(_unavailable())
            else:
                self._cancel(call)
        with self._changed:
            # A call that has been answered may hold its thread for ever where a model has died.
            self._changed.wait_for(
                lambda: all(call.ended and self._lost for call in self._calls), STOP_LIMIT_S
            )
        self._cancels.shutdown(wait=not self._lost)


def _unavailable() -> Unavailable:
    return Unavailable("a part of the server has died.", retry_after=RETRY_S)
