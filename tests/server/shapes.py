"""What goes to the server and what comes back, the same for every door."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2

#: A way to send a request by its fields.
Call = Callable[..., Any]
#: What Triton adds to the JSON of ``/generate``.
_TRITONS_OWN = (
    "model_name",
    "model_version",
    "id",
    "sequence_id",
    "sequence_start",
    "sequence_end",
)
_CODE = re.compile(r"([a-z_]+): (.*)", re.DOTALL)
_ENSEMBLE = re.compile(r"^in ensemble '[^']*', ")


@dataclasses.dataclass(frozen=True)
class Reply:
    """One response; ``outputs`` holds every non-empty output as a list of plain values."""

    outputs: dict[str, list[Any]]

    @property
    def texts(self) -> list[str]:
        return self.outputs["text_output"]

    @property
    def text(self) -> str:
        (text,) = self.texts
        return str(text)

    @property
    def served(self) -> str:
        (served,) = self.outputs["lora_served"]
        return str(served)

    @property
    def uid(self) -> str:
        (uid,) = self.outputs["request_uid"]
        return str(uid)


class Refused(Exception):
    """The server answered with an error. ``code`` is ours, or '' where Triton itself refused."""

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.message = _ENSEMBLE.sub("", message)
        self.status = status
        found = _CODE.fullmatch(self.message)
        self.code, self.sentence = (found[1], found[2]) if found else ("", self.message)


@dataclasses.dataclass(frozen=True)
class Stream:
    """All that came for one request of a stream."""

    replies: list[Reply]
    #: Responses that said they were the last one.
    finals: int
    error: Refused | None = None

    @property
    def text(self) -> str:
        return "".join(reply.text for reply in self.replies)

    def column(self, sequence: int) -> str:
        """The joined text of one of several sequences."""
        return "".join(reply.texts[sequence] for reply in self.replies)

    def checked(self) -> Stream:
        """Itself, unless it ended in an error."""
        if self.error is not None:
            raise self.error
        return self


@contextlib.contextmanager
def expect_error(code: str, mentions: str = "") -> Iterator[pytest.ExceptionInfo[Refused]]:
    """The block is refused with exactly this code; '' means that Triton itself refuses it."""
    with pytest.raises(Refused) as caught:
        yield caught
    refused = caught.value
    assert refused.code == code, refused.message
    assert mentions in refused.sentence, refused.message


def sampling(**fields: Any) -> str:
    """``sampling_parameters``: greedy and short unless told otherwise."""
    return json.dumps({"temperature": 0, "max_tokens": 4, **fields})


def plain(values: np.ndarray[Any, Any]) -> list[Any]:
    """A tensor's values as Python's own."""
    return [v.decode() if isinstance(v, bytes) else v.item() for v in values.reshape(-1)]


def from_json(body: Mapping[str, Any]) -> Reply:
    outputs = {k: v if isinstance(v, list) else [v] for k, v in body.items()}
    for name in _TRITONS_OWN:
        outputs.pop(name, None)
    return Reply({name: values for name, values in outputs.items() if values})


def tensors(fields: Mapping[str, Any]) -> list[tuple[str, str, np.ndarray[Any, Any]]]:
    """Inputs by name, datatype and value; a list is a tensor of as many elements."""
    found = []
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        if all(isinstance(v, bool) for v in values) and values:
            found.append((name, "BOOL", np.array(values)))
        else:
            raw = [v if isinstance(v, bytes) else str(v).encode() for v in values]
            found.append((name, "BYTES", np.array(raw, dtype=np.object_)))
    return found


def grpc_request(
    model: str,
    fields: Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    request_id: str = "",
    timeout_us: int = 0,
) -> service_pb2.ModelInferRequest:
    """The protobuf message, built by hand: what the official client would not send can be sent."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, datatype, values in tensors(fields):
        tensor = triton_grpc.InferInput(name, list(values.shape), datatype)
        tensor.set_data_from_numpy(values)
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    for key, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param"}.get(type(value))
        setattr(request.parameters[key], kind or "string_param", value)
    if timeout_us:
        request.parameters["timeout"].int64_param = timeout_us
    return request


def from_grpc(response: service_pb2.ModelInferResponse) -> Reply:
    result = triton_grpc.InferResult(response)
    arrays = {out.name: result.as_numpy(out.name) for out in response.outputs}
    return Reply({name: plain(a) for name, a in arrays.items() if a is not None and a.size})
