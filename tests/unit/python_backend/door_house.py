"""A door in front of a backend and callers that the tests control."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from python_backend import errors
from python_backend.doors import Door, Piece
from python_backend.messages import Decision
from python_backend.settings import DoorSettings
from python_backend.ticket import Ticket, sign

WAIT_S = 10


@dataclasses.dataclass
class Request:
    """What a test sends: the department, and what the engine does."""

    department: str = "fin"
    pieces: int = 3
    refused: errors.ServingError | None = None
    error: Exception | None = None
    ends_early: bool = False
    #: Set by the test: the engine's next piece may come.
    go: threading.Event = dataclasses.field(default_factory=threading.Event)
    deciding: threading.Event = dataclasses.field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.deciding.set()


def at_once(**options: Any) -> Request:
    request = Request(**options)
    request.go.set()
    return request


class Backend:
    """Gate and engine; a cancel ends the engine's call with ``cancelled``."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.started: list[str] = []
        self.cancelled: set[str] = set()
        self.cancel_error: Exception | None = None

    def decide(self, request: Request) -> Decision:
        assert request.deciding.wait(WAIT_S)
        if request.refused is not None:
            raise request.refused
        uid = f"uid{len(self.requests)}"
        self.requests[uid] = request
        ticket = Ticket(
            "boot", "vllm_lora", "generate", uid, request.department, "p", (), "", "", 1, 2
        )
        return Decision(uid, "{}", sign(ticket, bytes(32)), "cancel")

    def generate(self, decision: Decision) -> Iterator[Piece]:
        request = self.requests[decision.prompt]
        self.started.append(decision.prompt)
        for number in range(request.pieces):
            while not request.go.wait(0.002):
                if decision.prompt in self.cancelled:
                    raise errors.Cancelled("the request was cancelled.")
            if request.error is not None:
                raise request.error
            if request.ends_early:
                return
            yield Piece(number, number == request.pieces - 1)

    def cancel(self, decision: Decision) -> None:
        self.cancelled.add(decision.prompt)
        if self.cancel_error is not None:
            raise self.cancel_error


class Caller:
    """Records what it gets; ``left`` is what ``gone`` answers."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.error: errors.ServingError | None = None
        self.ended = threading.Event()
        self.left: bool | Exception = False
        self.on_send: Callable[[], None] | None = None
        self.ends = 0

    def send(self, piece: Piece) -> None:
        if self.on_send is not None:
            self.on_send()
        self.pieces.append(piece.tensors)
        if piece.final:
            self._end()

    def fail(self, error: errors.ServingError) -> None:
        self.error = error
        self._end()

    def gone(self) -> bool:
        if isinstance(self.left, Exception):
            raise self.left
        return self.left

    def _end(self) -> None:
        self.ends += 1
        self.ended.set()

    def code(self) -> str:
        assert self.ended.wait(WAIT_S)
        assert self.ends == 1
        return "" if self.error is None else self.error.code


class House:
    def __init__(self, **settings: Any) -> None:
        self.backend = Backend()
        self.lost = ""
        options = DoorSettings(**{"cancel_poll_s": 0.005, **settings})
        self.door = Door(self.backend, options, lambda: self.lost)

    def call(self, request: Request, caller: Caller | None = None) -> Caller:
        caller = caller or Caller()
        self.door.submit(request, caller)
        return caller


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
