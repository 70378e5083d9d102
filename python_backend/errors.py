"""Every error a caller can see.

    ServingError
    ├── Unauthenticated     unauthenticated     no credential, or one that proves nothing
    ├── NotFound            not_found           unknown adapter, or one the caller may not see
    ├── InvalidArgument     invalid_argument    the request itself is wrong; names the field
    ├── AdapterFailed       adapter_failed      the adapter could not be loaded
    ├── BreakerOpen         breaker_open        a breaker protects others from this adapter
    ├── Overloaded          overloaded          a bound is reached; carries retry_after
    ├── DeadlineExceeded    deadline_exceeded   the deadline passed
    ├── Cancelled           cancelled           the caller went away
    ├── Unavailable         unavailable         not ready, or the engine is gone
    └── Internal            internal            not ours: the trace is in the log, under its id

A message is ``code: sentence``; the code is one of this closed list. What may be retried ends in
``retry_after=<seconds>``. No message carries a path, a trace, a secret, or a name that the caller
did not send.
"""

from __future__ import annotations

import re
import secrets
from typing import ClassVar

#: Names of Triton's status codes (``pb_utils.TritonError``), kept as text so that this module
#: needs no Triton.
INVALID_ARG, NOT_FOUND, UNAVAILABLE, INTERNAL, CANCELLED = (
    "INVALID_ARG",
    "NOT_FOUND",
    "UNAVAILABLE",
    "INTERNAL",
    "CANCELLED",
)


class ServingError(Exception):
    """An error with a stable code.

    Args:
        sentence: what happened, in words that are safe to show to the caller.
        retry_after: seconds after which a retry makes sense, or None.
    """

    code: ClassVar[str] = "internal"
    triton_status: ClassVar[str] = INTERNAL
    #: What exactly was wrong, for log and audit alone; never part of the message.
    reason: str = ""

    def __init__(self, sentence: str, *, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.retry_after = retry_after

    @property
    def message(self) -> str:
        """``code: sentence``, with ``retry_after`` where there is one."""
        tail = "" if self.retry_after is None else f" retry_after={self.retry_after:g}"
        return f"{self.code}: {self.sentence}{tail}"


class Unauthenticated(ServingError):
    """No credential, an unknown one, or two that differ."""

    code = "unauthenticated"
    # Triton has no status for it; 400 is the nearest that clients do not retry.
    triton_status = INVALID_ARG


class NotFound(ServingError):
    """No such adapter, or one that this caller may not use: the two look the same."""

    code = "not_found"
    triton_status = NOT_FOUND

    def __init__(self) -> None:
        super().__init__("no adapter of that name is available to you.")


class InvalidArgument(ServingError):
    """The request is wrong.

    Args:
        field: the input or parameter at fault.
        problem: what is wrong with it, ending without a full stop.
    """

    code = "invalid_argument"
    triton_status = INVALID_ARG

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}.")
        self.field = field


class AdapterFailed(ServingError):
    """The adapter could not be loaded; only requests for it are touched."""

    code = "adapter_failed"
    triton_status = UNAVAILABLE


class BreakerOpen(ServingError):
    """A breaker is open."""

    code = "breaker_open"
    triton_status = UNAVAILABLE


class Overloaded(ServingError):
    """A bound (queue, concurrency, rate) is reached."""

    code = "overloaded"
    triton_status = UNAVAILABLE


class DeadlineExceeded(ServingError):
    """The request's deadline passed before it was answered."""

    code = "deadline_exceeded"
    triton_status = UNAVAILABLE


class Cancelled(ServingError):
    """The caller cancelled, or went away."""

    code = "cancelled"
    triton_status = CANCELLED


class Unavailable(ServingError):
    """The server is starting, stopping, or has lost its engine."""

    code = "unavailable"
    triton_status = UNAVAILABLE


class Internal(ServingError):
    """Something that is not ours failed.

    The caller gets an error id and nothing else; whoever raises this logs the trace under
    ``error_id``.
    """

    code = "internal"
    triton_status = INTERNAL

    def __init__(self) -> None:
        self.error_id = secrets.token_hex(6)
        super().__init__(f"something went wrong on our side (error id {self.error_id}).")


#: Every public code with its Triton status, for the README's table and for clients.
CODES: dict[str, type[ServingError]] = {
    kind.code: kind
    for kind in (
        Unauthenticated,
        NotFound,
        InvalidArgument,
        AdapterFailed,
        BreakerOpen,
        Overloaded,
        DeadlineExceeded,
        Cancelled,
        Unavailable,
        Internal,
    )
}

_LEADING_CODE = re.compile(r"(?:in ensemble '[^']*', )?([a-z_]+): (.*)", re.DOTALL)
_RETRY_AFTER = re.compile(r" retry_after=([0-9.]+)$")


def parse(message: str) -> ServingError:
    """The error that a message of ours stands for, as another model receives it over BLS.

    Triton wraps messages on their way (``in ensemble 'x', …``). What is not of our making becomes
    ``Internal``: its text may name shared-memory regions or paths and is never passed on.
    """
    match = _LEADING_CODE.fullmatch(message.strip())
    kind = CODES.get(match[1]) if match else None
    if match is None or kind is None:
        return Internal()
    sentence, retry_after = match[2], None
    if tail := _RETRY_AFTER.search(sentence):
        sentence, retry_after = sentence[: tail.start()], float(tail[1])
    error = kind.__new__(kind)
    ServingError.__init__(error, sentence, retry_after=retry_after)
    return error
