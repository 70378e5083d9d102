"""Responses on their way out, off the event loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backend.answers import joined
from python_backend.errors import Internal, ServingError
from python_backend.messages import Answer
from python_backend.wire.writing import answer_tensors, door_error, error_response, string, tensor

log = logging.getLogger(__name__)


class SenderThread:
    """Sends responses in order from a thread of its own, so that no event loop waits for Triton."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="responses", daemon=True)
        self._thread.start()

    def put(self, send: Callable[[], None]) -> None:
        """Queues one sending."""
        self._queue.put(send)

    def _run(self) -> None:
        while (send := self._queue.get()) is not None:
            try:
                send()
            except Exception:
                # The caller has gone, or Triton is stopping; the next response is not its fault.
                log.exception("a response could not be sent")

    def stop(self) -> None:
        """Sends what is queued, then ends the thread."""
        self._queue.put(None)
        self._thread.join(timeout=10)


class StreamResponder:
    """Answers one call of a decoupled model through the sender thread (see ``Responder``).

    Args:
        request: Triton's request.
        for_door: the caller is a BLS door: it gets a ``final`` flag with each response, since a
            BLS iterator does not show Triton's, errors as text in an ordinary response, since
            behind a first response Triton's own never reach it, and no empty outputs.
        coalesce: answers of a stream that wait to be sent go out as one.
    """

    def __init__(
        self, request: Any, thread: SenderThread, *, for_door: bool, coalesce: bool = False
    ) -> None:
        self._sender = request.get_response_sender()
        self._thread, self._for_door, self._coalesce = thread, for_door, coalesce
        #: The answer that waits, where they are joined, and whoever is about to change it.
        self._waiting: Answer | None = None
        self._lock = threading.Lock()

    def accept(self) -> None:
        """See ``Responder.accept``."""
        self._put(lambda: (False, lambda: pb_utils.InferenceResponse(output_tensors=[])))

    def send(self, answer: Answer, returns: tuple[str, ...]) -> None:
        """See ``Responder.send``."""
        if not self._coalesce:
            self._put(lambda: (answer.final, lambda: self._response(answer, returns)))
            return
        with self._lock:
            if self._waiting is not None:
                self._waiting = joined(self._waiting, answer)
                return
            self._waiting = answer

        def take() -> tuple[bool, Callable[[], Any]]:
            with self._lock:
                found, self._waiting = self._waiting or answer, None
            return found.final, lambda: self._response(found, returns)

        self._put(take)

    def _response(self, answer: Answer, returns: tuple[str, ...]) -> Any:
        tensors = answer_tensors(answer, returns, fill=not self._for_door)
        if self._for_door:
            if answer.fusion_served:
                tensors.append(string("fusion_served", answer.fusion_served))
            tensors.append(tensor("final", [answer.final], np.bool_))
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def fail(self, error: ServingError) -> None:
        """See ``Responder.fail``."""
        build = door_error if self._for_door else error_response
        self._put(lambda: (True, lambda: build(error)))

    def done(self) -> None:
        """See ``Responder.done``."""
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._thread.put(lambda: self._sender.send(flags=flags))

    def _put(self, take: Callable[[], tuple[bool, Callable[[], Any]]]) -> None:
        """Queues a response.

        Args:
            take: called when its turn has come: whether it is the last, and what builds it.
        """

        def send() -> None:
            final, build = take()
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
            try:
                response = build()
            except Exception:
                internal = Internal()
                log.exception("error id %s: a response cannot be built", internal.error_id)
                if not final:
                    return
                # Without an end the caller would wait for ever.
                response = (door_error if self._for_door else error_response)(internal)
            # Triton drops outputs nobody asked for without holding the GIL: these references keep
            # that from being the end of their arrays.
            tensors = response.output_tensors()
            self._sender.send(response, flags=flags)
            del tensors

        self._thread.put(send)
