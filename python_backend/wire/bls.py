"""The models behind a BLS door, called through Triton."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backend import errors
from python_backend.doors import Piece
from python_backend.engine_group import GATE
from python_backend.messages import GATE_OUTPUTS, GENERATION_INPUTS, Decision
from python_backend.ticket import CANCEL_PROMPT, CANCEL_REQUEST, ENGINE_AUDIENCE
from python_backend.wire import writing

_DECISION = [spec.name for spec in GATE_OUTPUTS]
#: Triton's own words about a model that is not there: not loaded yet, or unloaded for good.
_NOT_THERE = ("is not ready", "has no available versions", "unknown model")


#: How long a finished response iterator is kept, seconds.
_KEEP_S = 5.0


class _Finished:
    """Response iterators that have ended, kept until Triton has forgotten them.

    The stub lets go of a finished iterator from a thread that does not hold the GIL, a moment
    after its last response. Were that the last reference, the tensors' arrays would be freed
    without the GIL and the process would die of it, now or later (seen within some hundred calls
    on Triton 2.51). So ours has to be the last.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Any]] = deque()
        self._lock = threading.Lock()

    def keep(self, iterator: Any) -> None:
        """Keeps ``iterator`` for a while, and drops those that have been kept for long enough."""
        now = time.monotonic()
        dropped = []
        with self._lock:
            self._kept.append((now, iterator))
            while self._kept[0][0] < now - _KEEP_S:
                dropped.append(self._kept.popleft())


class TritonBackend:
    """Gate and engine model of this server (see ``doors.Backend``).

    Args:
        can_stream: whether the door can send more than one response.
        says_fusion: whether the door has an output for what was mixed.
        gate: the gate's model.
        engine: the engine's.
    """

    def __init__(
        self,
        *,
        can_stream: bool,
        says_fusion: bool = False,
        gate: str = GATE,
        engine: str = ENGINE_AUDIENCE,
    ) -> None:
        self._gate, self._engine = gate, engine
        self._can_stream = can_stream
        self._left_out = {"final"} if says_fusion else {"final", "fusion_served"}
        self._finished = _Finished()

    def decide(self, request: Any) -> Decision:
        """See ``Backend.decide``: the request's own tensors, and its parameters as JSON."""
        inputs = [
            tensor
            for spec in GENERATION_INPUTS
            if (tensor := pb_utils.get_input_tensor_by_name(request, spec.name)) is not None
        ]
        forwarded = json.dumps(
            {
                "parameters": json.loads(request.parameters() or "{}"),
                "timeout_us": int(request.timeout()),
                "can_stream": self._can_stream,
            }
        )
        inputs.append(writing.string("forwarded", forwarded))
        call = pb_utils.InferenceRequest(
            model_name=self._gate, requested_output_names=_DECISION, inputs=inputs
        )
        response = call.exec()
        _raise(response)
        found = {t.name(): t.as_numpy().reshape(-1)[0] for t in response.output_tensors()}
        return Decision(**{name: found[name].decode("utf-8") for name in _DECISION})

    def generate(self, decision: Decision) -> Iterator[Piece]:
        """See ``Backend.generate``."""
        for response in self._call(decision.prompt, decision.request, decision.ticket):
            tensors = [t for t in response.output_tensors() if t.name() not in self._left_out]
            if tensors:
                final = pb_utils.get_output_tensor_by_name(response, "final").as_numpy()[0]
                yield Piece(tensors, bool(final))

    def cancel(self, decision: Decision) -> None:
        """See ``Backend.cancel``."""
        for _ in self._call(CANCEL_PROMPT, CANCEL_REQUEST, decision.cancel_ticket):
            pass

    def _call(self, prompt: str, request: str, ticket: str) -> Iterator[Any]:
        call = pb_utils.InferenceRequest(
            model_name=self._engine,
            requested_output_names=[],
            inputs=[
                writing.string("prompt", prompt),
                writing.string("request", request),
                writing.string("ticket", ticket),
                writing.tensor("early_accept", [True], np.bool_),
            ],
        )
        responses = call.exec(decoupled=True)
        try:
            for response in responses:
                _raise(response)
                yield response
        finally:
            self._finished.keep(responses)


def _raise(response: Any) -> None:
    """The response's error, if it has one, as an error of ours."""
    if response.has_error():
        message = response.error().message()
        error = errors.parse(message)
        # Only words of Triton's own: ours may repeat the name of a caller's field.
        if isinstance(error, errors.Internal) and any(words in message for words in _NOT_THERE):
            raise errors.Unavailable("the engine is not ready.", retry_after=5)
        raise error
    if (error := pb_utils.get_output_tensor_by_name(response, "error")) is not None:
        raise errors.parse(error.as_numpy().reshape(-1)[0].decode("utf-8"))


class TritonCaller:
    """Whoever waits at the door, through Triton (see ``doors.Caller``).

    Behind the last response Triton frees what ``is_cancelled`` looks at, and asking then ends the
    whole server (a segmentation fault in 2.51). The lock keeps the two apart.
    """

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._ended = False

    def send(self, piece: Piece) -> None:
        """See ``Caller.send``."""
        response = pb_utils.InferenceResponse(output_tensors=piece.tensors)
        self._send(response, final=piece.final)

    def fail(self, error: errors.ServingError) -> None:
        """See ``Caller.fail``."""
        self._send(writing.error_response(error), final=True)

    def gone(self) -> bool:
        """See ``Caller.gone``."""
        with self._lock:
            return not self._ended and bool(self._sender.is_cancelled())

    def _send(self, response: Any, *, final: bool) -> None:
        if final:
            with self._lock:
                self._ended = True
        self._sender.send(response, flags=_flags(final=final))


def _flags(*, final: bool) -> int:
    return int(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL) if final else 0
