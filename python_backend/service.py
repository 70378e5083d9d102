"""What happens to a request that carries a ticket: checked, admitted, run, answered, once.

Runs on the engine's event loop; knows nothing of Triton. A request ends in exactly one final
answer or one error, whatever happens to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from typing import Protocol, cast

from python_backend import answers
from python_backend import ticket as tickets
from python_backend.adapters.versions import Versions
from python_backend.admin.commands import Command
from python_backend.admission import Admission
from python_backend.auto_settings import DistributionSettings
from python_backend.completion import CompletionSink, NoSink, Once, Responder, Tally
from python_backend.engine.base import Engine, EngineInfo
from python_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    ServingError,
    Unavailable,
)
from python_backend.guard import Guard
from python_backend.leasing import Leases, Mixtures
from python_backend.messages import Answer, EngineRequest, Sequence
from python_backend.runner import Runner
from python_backend.ticket import Ticket

log = logging.getLogger(__name__)

#: Cancels that overtook their request are remembered, at most this many.
_EARLY_CANCELS = 10_000


@dataclasses.dataclass(frozen=True)
class Call:
    """What reaches the engine model: the gate's four outputs, or those a caller made up."""

    prompt: bytes
    request: bytes
    ticket: str
    early_accept: bool = False


class AdminDesk(Protocol):
    """Whoever carries out what operators ask for (see ``admin.desk``)."""

    async def answer(self, command: Command, ticket: Ticket) -> str:
        """What came of it, as JSON. Raises ``ServingError``."""


class GenerateService:
    """The engine model's behaviour.

    Args:
        engine: started.
        info: what it said at its start.
        key: the server's ticket key.
        clock_ns: CLOCK_BOOTTIME, nanoseconds.
        sink: hears how each call ended.
        guard: the breakers; without one nothing is watched.
        mixtures: makes one adapter of several; without it nothing is mixed.
        distribution: bounds of the mode of that name.
    """

    def __init__(
        self,
        engine: Engine,
        info: EngineInfo,
        versions: Versions,
        admission: Admission,
        *,
        key: bytes,
        boot_id: str,
        clock_ns: Callable[[], int] = tickets.boottime_ns,
        sink: CompletionSink | None = None,
        guard: Guard | None = None,
        mixtures: Mixtures | None = None,
        distribution: DistributionSettings | None = None,
    ) -> None:
        self._sink = sink or NoSink()
        self._engine = engine
        entered = guard.entered if guard else contextlib.nullcontext
        leases = Leases(versions, mixtures, entered)
        self._runner = Runner(
            engine, info, leases, admission, distribution, key=key, clock_ns=clock_ns
        )
        self._admission, self._key, self._boot_id = admission, key, boot_id
        self._clock_ns = clock_ns
        self._seen = tickets.SeenUids()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._departments: dict[str, str] = {}
        #: Set before the first call; without one, operators are not answered.
        self.desk: AdminDesk | None = None
        self._cancelled_early: dict[str, None] = {}
        self._stopping = False
        self._failure: ServingError | None = None

    @property
    def running(self) -> int:
        """Requests under way."""
        return len(self._running)

    async def handle(
        self, call: Call, responder: Responder, refusal: ServingError | None = None
    ) -> None:
        """Answers one call, with ``refusal`` if there is one. Never raises."""
        tally = Tally(responder, self._clock_ns)
        responder = Once(tally)
        try:
            ticket = tally.ticket = self._check(call)
            if refusal:
                raise refusal
            if ticket.operation == "cancel":
                self._cancel(ticket.uid)
                responder.done()
            elif ticket.operation == "admin":
                self._sink.check()
                await self._administer(call, ticket, responder)
            else:
                self._sink.check()
                request = EngineRequest.from_json(call.request.decode("utf-8"))
                tally.mode = request.fusion
                await self._generate(call, answers.with_logprobs(request), ticket, responder)
        except ServingError as error:
            if isinstance(error, tickets.InvalidTicket):
                log.warning("a call without a valid ticket was refused: %s", error.reason)
            responder.fail(error)
        except asyncio.CancelledError:
            responder.fail(self._failure or Cancelled("the request was cancelled."))
        except Exception:
            internal = Internal()
            log.exception("error id %s", internal.error_id)
            responder.fail(internal)
        finally:
            self._sink.record(tally.completion())

    def _check(self, call: Call) -> Ticket:
        operation = tickets.peek(call.ticket).operation
        now_ns = self._clock_ns()
        ticket = tickets.verify(
            call.ticket,
            self._key,
            boot_id=self._boot_id,
            audience=tickets.ENGINE_AUDIENCE,
            operation=operation,
            prompt=call.prompt,
            request=call.request,
            now_ns=now_ns,
        )
        self._seen.use(ticket, now_ns)
        return ticket

    def _cancel(self, uid: str) -> None:
        if (task := self._running.get(uid)) is not None:
            log.info("[vllm] Cancelling the request")
            task.cancel()
            return
        # It may be on its way still: a door's two calls can overtake each other.
        self._cancelled_early[uid] = None
        if len(self._cancelled_early) > _EARLY_CANCELS:
            self._cancelled_early.pop(next(iter(self._cancelled_early)))

    def cancel_request(self, uid: str, department: str | None) -> bool:
        """Cancels a request of ``department`` (None: of anybody); whether there was one."""
        owner = self._departments.get(uid)
        if owner is None or department not in (None, owner):
            return False
        return self._running[uid].cancel()

    async def _administer(self, call: Call, ticket: Ticket, responder: Responder) -> None:
        if self.desk is None:
            raise tickets.InvalidTicket("operation")
        if self._stopping or self._failure is not None:
            raise self._failure or Unavailable("the engine is not ready.", retry_after=5)
        if call.early_accept:
            responder.accept()
        self._running[ticket.uid] = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            try:
                command = Command.from_json(call.request.decode("utf-8"))
            except (ValueError, TypeError):
                raise tickets.InvalidTicket("not a command") from None
            result = await self.desk.answer(command, ticket)
        finally:
            del self._running[ticket.uid]
        served = f"admin:{command.op}"
        responder.send(Answer((Sequence(result),), 0, served, ticket.uid, final=True), ())

    async def _generate(
        self, call: Call, request: EngineRequest, ticket: Ticket, responder: Responder
    ) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping or not self._engine.alive:
            raise Unavailable("the engine is not ready.", retry_after=5)
        if ticket.uid in self._cancelled_early:
            del self._cancelled_early[ticket.uid]
            raise Cancelled("the request was cancelled.")
        self._running[ticket.uid] = cast("asyncio.Task[None]", asyncio.current_task())
        self._departments[ticket.uid] = ticket.department
        try:
            left_s = (ticket.deadline_ns - self._clock_ns()) / 1e9
            if left_s <= 0:
                raise DeadlineExceeded("the deadline has passed.")
            async with asyncio.timeout(left_s):
                seats = int(request.sampling.get("n", 1))
                with self._admission.place(ticket.department, seats) as place:
                    if call.early_accept:
                        responder.accept()
                    await self._runner.run(call.prompt, request, ticket, place, responder)
        except TimeoutError:
            raise DeadlineExceeded("the deadline has passed.") from None
        except asyncio.CancelledError:
            log.info("[vllm] Successfully cancelled the request")
            raise
        finally:
            del self._running[ticket.uid], self._departments[ticket.uid]

    def fail_all(self, error: ServingError) -> None:
        """Ends every request under way with ``error``, and each that comes from now on."""
        self._failure = error
        for task in self._running.values():
            task.cancel()

    async def stop(self, drain_s: float = 0.0) -> None:
        """Refuses new requests and waits until those under way have ended.

        Those that have not within ``drain_s`` seconds are cancelled.
        """
        self._stopping = True
        tasks = list(self._running.values())
        if tasks and drain_s:
            await asyncio.wait(tasks, timeout=drain_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
