"""The door for operators: a gate of its own in this process, then the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from python_backend.doors import Piece
from python_backend.messages import Decision, RawRequest
from python_backend.wire import reading, writing
from python_backend.wire.bls import TritonBackend

#: Decides on (what reads the caller's request, what reads the command).
Decide = Callable[[Callable[[], RawRequest], Callable[[], bytes]], Decision]


class AdminBackend(TritonBackend):
    """See ``doors.Backend``; ``engine`` is the engine's model."""

    def __init__(self, decide: Decide, engine: str) -> None:
        super().__init__(can_stream=False, engine=engine)
        self._decide = decide

    def decide(self, request: Any) -> Decision:
        """See ``Backend.decide``."""
        return self._decide(
            lambda: reading.read_raw(request, can_stream=False),
            lambda: reading.read_command(request),
        )

    def generate(self, decision: Decision) -> Iterator[Piece]:
        """See ``Backend.generate``: the engine's text as ``result``."""
        for piece in super().generate(decision):
            found = {tensor.name(): tensor for tensor in piece.tensors}
            text = found["text_output"].as_numpy().reshape(-1)[0].decode("utf-8")
            yield Piece([writing.string("result", text)], piece.final)

    def cancel(self, decision: Decision) -> None:
        """A command is not cancelled by leaving: half of it is nobody's wish."""
