"""Every door of the server, with answers and refusals in one shape."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.shapes import (
    Refused,
    Reply,
    Stream,
    expect_error,
    from_grpc,
    from_json,
    grpc_request,
    plain,
    sampling,
    tensors,
)

__all__ = [
    "DOORS",
    "Client",
    "Refused",
    "Reply",
    "Stream",
    "expect_error",
    "grpc_request",
    "sampling",
]

#: No call of a test may take longer, seconds.
LIMIT_S = 30.0


class Client:
    """Calls one server. Every method raises ``Refused`` for an error answer.

    ``fields`` are input tensors; where no credential is among them the admin's key is added.
    With ``trusted``, a certificate's file, it speaks TLS.
    """

    def __init__(self, http: str, grpc_address: str, key: str, trusted: Path | None = None) -> None:
        self.http_address, self.grpc_address, self._key = http, grpc_address, key
        options = [("grpc.max_receive_message_length", -1)]
        if trusted is None:
            self.http = httpx.Client(base_url=f"http://{http}", timeout=LIMIT_S)
            self.channel = grpc.insecure_channel(grpc_address, options=options)
        else:
            context = ssl.create_default_context(cafile=str(trusted))
            self.http = httpx.Client(base_url=f"https://{http}", timeout=LIMIT_S, verify=context)
            proof = grpc.ssl_channel_credentials(trusted.read_bytes())
            self.channel = grpc.secure_channel(grpc_address, proof, options=options)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def close(self) -> None:
        self.http.close()
        self.channel.close()

    def _with_key(self, fields: dict[str, Any]) -> dict[str, Any]:
        """``credential=None`` sends none."""
        fields = {"credential": self._key, **fields}
        return {name: value for name, value in fields.items() if value is not None}

    def post(self, path: str, **options: Any) -> httpx.Response:
        """A raw POST; answers of any status are returned."""
        return self.http.post(path, **options)

    def generate(
        self, model: str, *, parameters: Mapping[str, Any] | None = None, **fields: Any
    ) -> Reply:
        """``/generate``. ``parameters`` are sent as they are, nested under that name."""
        body = self._with_key(fields)
        if parameters is not None:
            body["parameters"] = parameters
        response = self.post(f"/v2/models/{model}/generate", json=body)
        if response.status_code != 200:
            raise Refused(response.json()["error"], str(response.status_code))
        return from_json(response.json())

    def generate_stream(
        self, model: str, *, parameters: Mapping[str, Any] | None = None, **fields: Any
    ) -> Stream:
        """``/generate_stream``, to its end."""
        body = {"stream": True, **self._with_key(fields)}
        if parameters is not None:
            body["parameters"] = parameters
        replies: list[Reply] = []
        error: Refused | None = None
        path = f"/v2/models/{model}/generate_stream"
        with self.http.stream("POST", path, json=body) as response:
            if not response.headers["content-type"].startswith("text/event-stream"):
                raise Refused(json.loads(response.read())["error"], str(response.status_code))
            for event in sse_events(response.iter_text()):
                if "error" in event:
                    error = Refused(event["error"], str(response.status_code))
                else:
                    replies.append(from_json(event))
        # The end of the body is what a client of this door has for a final flag.
        return Stream(replies, 1, error).checked()

    def infer_body(
        self, fields: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
    ) -> tuple[bytes, int]:
        """The body of an ``/infer`` call and the length of its JSON part."""
        inputs = []
        for name, datatype, values in tensors(fields):
            tensor = triton_http.InferInput(name, list(values.shape), datatype)
            tensor.set_data_from_numpy(values)
            inputs.append(tensor)
        body, length = triton_http.InferenceServerClient.generate_request_body(
            inputs, parameters=dict(parameters or {})
        )
        return body, length or len(body)

    def infer_http(
        self,
        model: str = "lora_infer",
        *,
        parameters: Mapping[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> Reply:
        """HTTP ``/infer`` by the official client."""
        body, header_length = self.infer_body(self._with_key(fields), parameters)
        sent = {"Inference-Header-Content-Length": str(header_length), **(headers or {})}
        path = f"/v2/models/{model}/infer"
        response = self.post(path, content=body, headers=sent)
        if response.status_code != 200:
            raise Refused(response.json()["error"], str(response.status_code))
        length = response.headers.get("Inference-Header-Content-Length")
        result = triton_http.InferenceServerClient.parse_response_body(
            response.content, header_length=int(length) if length else None
        )
        arrays = {o["name"]: result.as_numpy(o["name"]) for o in result.get_response()["outputs"]}
        return Reply({name: plain(a) for name, a in arrays.items() if a.size})

    def infer_grpc(
        self,
        model: str = "lora_infer",
        *,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: str = "",
        timeout_us: int = 0,
        **fields: Any,
    ) -> Reply:
        """Unary gRPC ``ModelInfer``."""
        request = grpc_request(model, self._with_key(fields), parameters, request_id, timeout_us)
        try:
            response = self.stub.ModelInfer(
                request, timeout=LIMIT_S, metadata=list((headers or {}).items())
            )
        except grpc.RpcError as error:
            raise Refused(error.details(), error.code().name) from None
        return from_grpc(response)

    def stream_grpc(
        self,
        model: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: str = "1",
        **fields: Any,
    ) -> Stream:
        """One request on a gRPC stream of its own, streamed, until the server closes it."""
        fields = {"stream": True, **self._with_key(fields)}
        request = grpc_request(model, fields, parameters, request_id)
        return self.streams_grpc([request], headers)[request_id].checked()

    def streams_grpc(
        self,
        requests: Iterable[service_pb2.ModelInferRequest],
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Stream]:
        """Many requests on one gRPC stream, by request id.

        The requests end, so the server closes the stream after its last response: what has
        arrived by then is all there is, and the final flags can be counted.
        """
        found: dict[str, Stream] = {}
        sent = list(requests)
        for request in sent:  # a final flag without an answer is otherwise kept back
            request.parameters["triton_enable_empty_final_response"].bool_param = True
        metadata = list((headers or {}).items())
        call = self.stub.ModelStreamInfer(iter(sent), timeout=LIMIT_S, metadata=metadata)
        for message in call:
            response = message.infer_response
            old = found.get(response.id, Stream([], 0))
            final = response.parameters["triton_final_response"].bool_param
            replies, error = old.replies, old.error
            if message.error_message:
                error = Refused(message.error_message, "OK")
            elif response.outputs:
                replies = [*replies, from_grpc(response)]
            found[response.id] = Stream(replies, old.finals + final, error)
        return found

    def answer(self, door: str, **fields: Any) -> Reply:
        """The whole answer through any door of ``DOORS``, the prompt excluded."""
        fields = {"exclude_input_in_output": True, **fields}
        way, model = door.split(" ")
        if way == "generate":
            return self.generate(model, **fields)
        if way == "http":
            return self.infer_http(model, **fields)
        if way == "grpc":
            return self.infer_grpc(model, **fields)
        call = self.generate_stream if way == "sse" else self.stream_grpc
        stream = call(model, **fields)
        last = stream.replies[-1]
        return Reply({**last.outputs, "text_output": [stream.text]})


def sse_events(chunks: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The ``data:`` objects of a stream of server-sent events."""
    buffer = ""
    for chunk in chunks:
        buffer += chunk
        while "\n\n" in buffer:
            event, buffer = buffer.split("\n\n", 1)
            yield json.loads(event.removeprefix("data: "))


#: Every way to be answered: how, and by which model.
DOORS = (
    "stream lora_generate",
    "generate lora_generate",
    "sse lora_generate",
    "stream lora_stream",
    "generate lora_stream",
    "sse lora_stream",
    "http lora_infer",
    "grpc lora_infer",
)
