"""Triton's requests as our messages."""

from __future__ import annotations

import json
from typing import Any

from python_backend.errors import InvalidArgument
from python_backend.messages import RETURN_SWITCHES, RawRequest
from python_backend.service import Call


class _Inputs:
    """The inputs that came with a request: looked up once, most of them are not there."""

    def __init__(self, request: Any) -> None:
        self._sent = {tensor.name(): tensor for tensor in request.inputs()}

    def text(self, name: str) -> bytes | None:
        """The one element of a STRING input; None if it was not sent. Raises InvalidArgument."""
        if (tensor := self._sent.get(name)) is None:
            return None
        value = _one(tensor.as_numpy(), name)
        return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")

    def flag(self, name: str) -> bool | None:
        """The one element of a BOOL input; None if it was not sent. Raises InvalidArgument."""
        tensor = self._sent.get(name)
        return None if tensor is None else bool(_one(tensor.as_numpy(), name))


def _one(values: Any, name: str) -> Any:
    if values.size != 1:
        raise InvalidArgument(name, f"exactly one element is expected, not {values.size}")
    return values.item()


def wants(request: Any, output: str) -> bool:
    """Whether the caller asked for this output; Triton names all where the caller named none."""
    return output in request.requested_output_names()


def _parameters(request: Any) -> dict[str, Any]:
    if not (text := request.parameters()):
        return {}
    try:
        parameters = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgument("parameters", "not readable as JSON") from None
    return dict(parameters)


def read_raw(request: Any, *, can_stream: bool) -> RawRequest:
    """A caller's request; a door's ``forwarded`` parameters take the place of Triton's own.

    Raises:
        InvalidArgument: a tensor has another number of elements than one, or is not readable.
    """
    parameters, timeout_us = _parameters(request), int(request.timeout())
    inputs = _Inputs(request)
    if (forwarded := inputs.text("forwarded")) is not None:
        try:
            body = json.loads(forwarded)
            parameters, timeout_us = body["parameters"], int(body["timeout_us"])
            can_stream = bool(body["can_stream"])
            if not isinstance(parameters, dict) or not 0 <= timeout_us < 1 << 63:
                raise ValueError
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise InvalidArgument("forwarded", "not readable") from None
    return RawRequest(
        text_input=inputs.text("text_input"),
        messages=inputs.text("messages"),
        lora_id=inputs.text("lora_id"),
        fusion=inputs.text("fusion"),
        credential=inputs.text("credential"),
        stream=inputs.flag("stream"),
        sampling_parameters=inputs.text("sampling_parameters"),
        exclude_input_in_output=inputs.flag("exclude_input_in_output"),
        returns=frozenset(
            [output for switch, output in RETURN_SWITCHES.items() if inputs.flag(switch)]
        ),
        parameters=parameters,
        timeout_us=timeout_us,
        can_stream=can_stream,
    )


def read_command(request: Any) -> bytes:
    """An operator's command, as it came.

    Raises:
        InvalidArgument: it is not exactly one.
    """
    return _Inputs(request).text("command") or b""


def read_call(request: Any) -> Call:
    """What reached the engine model; never fails, since whoever called must get an answer.

    A tensor that cannot be read counts as empty, and no ticket fits an empty one.
    """
    inputs = _Inputs(request)
    return Call(
        prompt=_text_or_empty(inputs, "prompt"),
        request=_text_or_empty(inputs, "request"),
        ticket=_text_or_empty(inputs, "ticket").decode("ascii", "replace"),
        early_accept=_early_accept(inputs),
    )


def _text_or_empty(inputs: _Inputs, name: str) -> bytes:
    try:
        return inputs.text(name) or b""
    except InvalidArgument:
        return b""


def _early_accept(inputs: _Inputs) -> bool:
    try:
        return bool(inputs.flag("early_accept"))
    except InvalidArgument:
        return False
