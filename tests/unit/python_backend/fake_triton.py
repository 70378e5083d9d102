"""As much of ``triton_python_backend_utils`` as ``python_backend.wire`` uses."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

FINAL = 1


class Tensor:
    def __init__(self, name: str, values: Any) -> None:
        assert isinstance(values, np.ndarray)
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._values


class TritonError(Exception):
    INVALID_ARG, NOT_FOUND, UNAVAILABLE, INTERNAL, CANCELLED = range(5)

    def __init__(self, message: str, status: int = INTERNAL) -> None:
        super().__init__(message)
        self.status = status

    def message(self) -> str:
        return str(self)


class InferenceResponse:
    def __init__(self, output_tensors: Any = (), error: TritonError | None = None) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Sender:
    """Records (response, flags)."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.cancelled = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return self.cancelled


class Request:
    """A request with ``tensors`` given as Python lists, for the outputs ``wanted``."""

    def __init__(
        self,
        *,
        parameters: str = "",
        timeout_us: int = 0,
        wanted: Sequence[str] = (),
        **tensors: list[Any],
    ) -> None:
        self._parameters, self._timeout_us, self._wanted = parameters, timeout_us, wanted
        self.sender = Sender()
        self._inputs = [
            Tensor(name, np.array(values, dtype=object if _is_text(values) else np.bool_))
            for name, values in tensors.items()
        ]

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return list(self._wanted)

    def parameters(self) -> str:
        return self._parameters

    def timeout(self) -> int:
        return self._timeout_us

    def get_response_sender(self) -> Sender:
        return self.sender


def _is_text(values: Any) -> bool:
    while isinstance(values, list):
        if not values:
            return True
        values = values[0]
    return isinstance(values, bytes | str)


def _input(request: Request, name: str) -> Tensor | None:
    return next((t for t in request.inputs() if t.name() == name), None)


def _output(response: InferenceResponse, name: str) -> Tensor | None:
    return next((t for t in response.output_tensors() if t.name() == name), None)


class InferenceRequest:
    """A BLS call; ``answers`` maps a model to the responses it gives, ``calls`` records."""

    answers: ClassVar[dict[str, Any]] = {}
    calls: ClassVar[list[InferenceRequest]] = []

    def __init__(self, model_name: str, requested_output_names: list[str], inputs: Any) -> None:
        self.model_name, self.wanted = model_name, requested_output_names
        self.inputs = {tensor.name(): tensor.as_numpy() for tensor in inputs}

    def exec(self, decoupled: bool = False) -> Any:
        self.calls.append(self)
        answer = self.answers[self.model_name]
        return iter(answer) if decoupled else answer


def install() -> types.ModuleType:
    """Puts the module where ``import`` finds it, unless it is there already."""
    name = "triton_python_backend_utils"
    module = sys.modules.get(name)
    if module is None:
        module = types.ModuleType(name)
        module.__dict__.update(
            Tensor=Tensor,
            TritonError=TritonError,
            InferenceResponse=InferenceResponse,
            InferenceRequest=InferenceRequest,
            TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
            get_input_tensor_by_name=_input,
            get_output_tensor_by_name=_output,
        )
        sys.modules[name] = module
    return module


def forwarded(parameters: dict[str, Any], timeout_us: int = 0, can_stream: bool = True) -> bytes:
    """What a door puts into the gate's ``forwarded``."""
    body = {"parameters": parameters, "timeout_us": timeout_us, "can_stream": can_stream}
    return json.dumps(body).encode()
