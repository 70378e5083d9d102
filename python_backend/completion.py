"""How a call ended: what was sent is counted on its way out, and handed to a sink."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol

from python_backend.errors import ServingError
from python_backend.messages import Answer
from python_backend.ticket import Ticket

#: ``outcome`` of a call that was answered; all others are error codes.
OK = "ok"


@dataclasses.dataclass(frozen=True)
class Completion:
    """The end of one call at the engine. ``ticket`` is None where no valid one came with it.

    ``outcome`` is ``ok`` or an error's code, ``reason`` what the log knows of it. Times are
    seconds; ``ttft_s`` (to the first token) is None where there was none.
    """

    ticket: Ticket | None
    outcome: str
    reason: str = ""
    served: str = ""
    finish_reasons: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    ttft_s: float | None = None
    #: How adapters were mixed; empty where none were.
    mode: str = ""

    @property
    def event(self) -> Literal["completion", "cancel", "engine_refusal"]:
        """What kind of end it is: a cancel is a call of its own."""
        if self.ticket is None:
            return "engine_refusal"
        return "cancel" if self.ticket.operation == "cancel" else "completion"


class CompletionSink(Protocol):
    """Whoever wants to know how calls end."""

    def check(self) -> None:
        """Raises ``ServingError`` where a call must not begin, since its end could not be told."""

    def record(self, completion: Completion) -> None:
        """Takes note; never raises and never blocks for long: it runs on the engine's loop."""


class NoSink:
    """A sink that listens to nothing."""

    def check(self) -> None:
        """Lets every call begin."""

    def record(self, completion: Completion) -> None:
        """Forgets it."""


class Responder(Protocol):
    """How a call is answered. ``send`` of a final answer, ``fail`` and ``done`` end it."""

    def accept(self) -> None:
        """An empty first response: the call is in, its answer comes later."""

    def send(self, answer: Answer, returns: tuple[str, ...]) -> None:
        """One response with ``returns`` among its outputs; the last if ``answer.final``."""

    def fail(self, error: ServingError) -> None:
        """An error, and the end."""

    def done(self) -> None:
        """The end, with nothing more to say."""


class Once:
    """A responder that ends once: what comes after the end (a late cancel, say) is dropped."""

    def __init__(self, responder: Responder) -> None:
        self._responder, self._ended = responder, False

    def accept(self) -> None:
        """See ``Responder``."""
        self._responder.accept()

    def send(self, answer: Answer, returns: tuple[str, ...]) -> None:
        """See ``Responder``."""
        if not self._ended:
            self._ended = answer.final
            self._responder.send(answer, returns)

    def fail(self, error: ServingError) -> None:
        """See ``Responder``."""
        if not self._ended:
            self._ended = True
            self._responder.fail(error)

    def done(self) -> None:
        """See ``Responder``."""
        if not self._ended:
            self._ended = True
            self._responder.done()


class Tally:
    """A responder that counts what passes through it.

    Args:
        clock_ns: CLOCK_BOOTTIME, nanoseconds.
    """

    def __init__(self, responder: Responder, clock_ns: Callable[[], int]) -> None:
        self._responder, self._clock_ns = responder, clock_ns
        self._began_ns = clock_ns()
        self._first_ns: int | None = None
        self._tokens, self._input_tokens = 0, 0
        self._served, self._reasons = "", tuple[str, ...]()
        self._outcome, self._reason = OK, ""
        #: The call's ticket, once it has been found valid.
        self.ticket: Ticket | None = None
        #: How its adapters are mixed, once that has been read.
        self.mode = ""

    def accept(self) -> None:
        """See ``Responder``."""
        self._responder.accept()

    def send(self, answer: Answer, returns: tuple[str, ...]) -> None:
        """See ``Responder``."""
        tokens = sum(part.num_tokens for part in answer.sequences)
        if tokens and self._first_ns is None:
            self._first_ns = self._clock_ns()
        self._tokens += tokens
        self._input_tokens, self._served = answer.num_input_tokens, answer.lora_served
        self._reasons = tuple(str(part.finish_reason) for part in answer.sequences)
        self._responder.send(answer, returns)

    def fail(self, error: ServingError) -> None:
        """See ``Responder``."""
        self._outcome = error.code
        self._reason = error.reason or getattr(error, "error_id", "")
        self._responder.fail(error)

    def done(self) -> None:
        """See ``Responder``."""
        self._responder.done()

    def completion(self) -> Completion:
        """What has been counted so far, as the end of the call."""
        first = self._first_ns
        return Completion(
            ticket=self.ticket,
            outcome=self._outcome,
            reason=self._reason,
            served=self._served,
            finish_reasons=self._reasons,
            input_tokens=self._input_tokens,
            output_tokens=self._tokens,
            latency_s=(self._clock_ns() - self._began_ns) / 1e9,
            ttft_s=None if first is None else (first - self._began_ns) / 1e9,
            mode=self.mode,
        )
