"""The three ways to the server: gRPC stream, HTTP stream, unary infer. All under gevent.

Whoever imports this has patched the standard library (``import locust`` does) and calls
``ready_grpc`` once in each process, after it has forked and before the first call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import time
from collections.abc import Iterator
from typing import Any

import gevent
import grpc.experimental.gevent  # type: ignore[import-untyped]
import httpx
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from loadtests.judge import outcome
from loadtests.plan import GRACE_S, Call, Plan

_STREAM, _UNARY = "lora_stream", "lora_infer"
_CONNECTIONS = 1024
#: A server that has come back is found within a second.
_CHANNEL = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.min_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


@dataclasses.dataclass
class Answer:
    """What came of a call. Times are ``time.perf_counter``'s, seconds."""

    began: float = 0.0
    pieces_at: list[float] = dataclasses.field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    served: str | None = None
    tokens: int = 0
    uid: str | None = None
    #: An outcome of ``results.Request``, and what was said of it.
    outcome: str = "ok"
    message: str = ""

    def piece(self, text: str, served: str | None, tokens: int, uid: str | None = None) -> None:
        """Notes a piece that has come now."""
        if text or tokens:
            self.pieces_at.append(time.perf_counter())
        self.text += text
        self.served, self.uid = served or self.served, uid or self.uid
        self.tokens += tokens

    def failed(self, message: str) -> None:
        """Notes an error answer, or that there was none."""
        self.outcome, self.message = outcome(message), message


def ready_grpc() -> None:
    """Lets gRPC's waits give way to other greenlets: without it one call blocks the process."""
    grpc.experimental.gevent.init_gevent()


class Doors:
    """Sends calls of a plan; each call may run in a greenlet of its own, all at once.

    Its connections end with the process.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._keys = plan, plan.keys()
        self._limit_s = plan.patience_s + GRACE_S
        self._idle: list[_Stream] = []
        limits = httpx.Limits(max_connections=_CONNECTIONS)
        self._http = httpx.Client(
            base_url=f"http://{plan.http}", limits=limits, timeout=self._limit_s
        )
        self._unary = triton_http.InferenceServerClient(
            plan.http, concurrency=_CONNECTIONS, network_timeout=self._limit_s
        )

    def send(self, call: Call) -> Answer:
        """One call to its end. Never raises for what the server or the network does."""
        answer = Answer(began=time.perf_counter())
        way = {"grpc_stream": self._by_grpc, "http_stream": self._by_http, "unary": self._by_infer}
        limit = gevent.Timeout(self._limit_s)
        limit.start()
        try:
            way[call.user](call, answer)
        except gevent.Timeout as passed:
            if passed is not limit:
                raise
            answer.failed(f"no answer within {self._limit_s:g} s")
        except (InferenceServerException, httpx.HTTPError, OSError, ValueError) as error:
            answer.failed(_words(error))
        finally:
            limit.close()
        answer.ended = time.perf_counter()
        return answer

    def _by_grpc(self, call: Call, answer: Answer) -> None:
        stream = self._idle.pop() if self._idle else _Stream(self._plan.grpc)
        try:
            stream.ask(self._inputs(call, triton_grpc), self._parameters(call), call, answer)
        finally:
            self._idle.append(stream)

    def _by_http(self, call: Call, answer: Answer) -> None:
        body: dict[str, Any] = {**self._parameters(call), **self._texts(call), "stream": True}
        body |= {"exclude_input_in_output": True, "return_num_output_tokens": True}
        path = f"/v2/models/{_STREAM}/generate_stream"
        with self._http.stream("POST", path, json=body) as response:
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                answer.failed(_error_of(response.read()))
                return
            for event in _events(response):
                if "error" in event:
                    answer.failed(str(event["error"]))
                    return
                # Triton writes a tensor of one element as the element alone.
                tokens = event.get("num_output_tokens", 0)
                tokens = sum(tokens) if isinstance(tokens, list) else int(tokens)
                names = (event.get("lora_served"), event.get("request_uid"))
                answer.piece(str(event.get("text_output", "")), names[0], tokens, names[1])
                if call.kind == "cancel" and len(answer.pieces_at) >= call.leave_after:
                    answer.outcome = "cancelled"
                    return

    def _by_infer(self, call: Call, answer: Answer) -> None:
        result = self._unary.infer(
            _UNARY, self._inputs(call, triton_http), parameters=self._parameters(call)
        )
        answer.piece(*_contents(result))

    def _texts(self, call: Call) -> dict[str, str]:
        texts = {"text_input": call.prompt, "credential": self._keys[call.department]}
        if call.lora_id is not None:
            texts["lora_id"] = call.lora_id
        return texts | call.inputs

    def _parameters(self, call: Call) -> dict[str, Any]:
        exact = {"max_tokens": call.tokens, "min_tokens": call.tokens, "ignore_eos": True}
        timeout_ms = int(self._plan.patience_s * 1e3)
        return {"temperature": 0, "timeout_ms": timeout_ms, **exact, **call.parameters}

    def _inputs(self, call: Call, client: Any) -> list[Any]:
        flags = {"exclude_input_in_output": True, "return_num_output_tokens": True}
        if call.user != "unary":
            flags["stream"] = True
        found = []
        for name, value in {**self._texts(call), **flags}.items():
            kind = "BOOL" if isinstance(value, bool) else "BYTES"
            tensor = client.InferInput(name, [1], kind)
            array = np.array([value]) if kind == "BOOL" else np.array([str(value).encode()], object)
            tensor.set_data_from_numpy(array)
            found.append(tensor)
        return found


class _Stream:
    """A client with a gRPC stream that carries one call at a time.

    The client is never closed: under gevent gRPC counts channels, tritonclient closes each twice,
    and with a count of none gRPC wakes no greenlet any more, whoever waits.
    """

    def __init__(self, address: str) -> None:
        self._client = triton_grpc.InferenceServerClient(address, channel_args=_CHANNEL)
        self._answers: queue.Queue[tuple[Any, Any]] | None = None

    def ask(
        self, inputs: list[Any], parameters: dict[str, Any], call: Call, answer: Answer
    ) -> None:
        """One call to its end, or until its caller leaves."""
        answers, whole = self._answers or self._start(), False
        try:
            self._client.async_stream_infer(
                _STREAM, inputs, parameters=parameters, enable_empty_final_response=True
            )
            whole = _take(answers, call, answer)
        finally:
            # A stream whose call was left, or that broke, carries no other.
            if not whole:
                self.stop()

    def _start(self) -> queue.Queue[tuple[Any, Any]]:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: answers.put((result, error)))
        self._answers = answers
        return answers

    def stop(self) -> None:
        """Ends the stream and what is under way on it."""
        self._answers = None
        with contextlib.suppress(InferenceServerException):
            self._client.stop_stream(cancel_requests=True)


def _take(answers: queue.Queue[tuple[Any, Any]], call: Call, answer: Answer) -> bool:
    """Takes what comes for a call; whether the stream can carry the next."""
    while True:
        result, error = answers.get()
        if error is not None:
            answer.failed(_words(error))
            # Errors of the request end it alone; the stream's own have a status.
            return error.status() is None
        response = result.get_response()
        if response.outputs:
            answer.piece(*_contents(result))
        if response.parameters["triton_final_response"].bool_param:
            return True
        if call.kind == "cancel" and len(answer.pieces_at) >= call.leave_after:
            answer.outcome = "cancelled"
            return False


def _contents(result: Any) -> tuple[str, str | None, int, str | None]:
    """Text, ``lora_served``, number of tokens and ``request_uid`` of a response."""

    def of(name: str) -> list[Any]:
        values = result.as_numpy(name)
        return [] if values is None else list(values.reshape(-1))

    served, uid = (
        next((value.decode() for value in of(name)), None)
        for name in ("lora_served", "request_uid")
    )
    text = "".join(value.decode("utf-8", "replace") for value in of("text_output"))
    return text, served, int(sum(of("num_output_tokens"))), uid


def _words(error: Exception) -> str:
    said = error.message() if isinstance(error, InferenceServerException) else str(error)
    return str(said or type(error).__name__)


def _error_of(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")[:200]


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))
