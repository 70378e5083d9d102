"""Triton's requests as our messages."""

from __future__ import annotations

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backend.errors import InvalidArgument
from python_backend.messages import RETURN_SWITCHES, RawRequest
from python_backend.service import Call


def _text(request: Any, name: str) -> bytes | None:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    value = _one(tensor.as_numpy(), name)
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _flag(request: Any, name: str) -> bool | None:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else bool(_one(tensor.as_numpy(), name))


def _one(values: Any, name: str) -> Any:
    if values.size != 1:
        raise InvalidArgument(name, f"exactly one element is expected, not {values.size}")
    return values.reshape(-1)[0]


def _parameters(request: Any) -> dict[str, Any]:
    try:
        parameters = json.loads(request.parameters() or "{}")
    except (ValueError, RecursionError):
        raise InvalidArgument("parameters", "not readable as JSON") from None
    return dict(parameters)


def read_raw(request: Any, *, can_stream: bool) -> RawRequest:
    """A caller's request; a door's ``forwarded`` parameters take the place of Triton's own.

    Raises:
        InvalidArgument: a tensor has another number of elements than one, or is not readable.
    """
    parameters, timeout_us = _parameters(request), int(request.timeout())
    if (forwarded := _text(request, "forwarded")) is not None:
        try:
            body = json.loads(forwarded)
            parameters, timeout_us = body["parameters"], int(body["timeout_us"])
            can_stream = bool(body["can_stream"])
            if not isinstance(parameters, dict) or not 0 <= timeout_us < 1 << 63:
                raise ValueError
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise InvalidArgument("forwarded", "not readable") from None
    return RawRequest(
        text_input=_text(request, "text_input"),
        messages=_text(request, "messages"),
        lora_id=_text(request, "lora_id"),
        fusion=_text(request, "fusion"),
        credential=_text(request, "credential"),
        stream=_flag(request, "stream"),
        sampling_parameters=_text(request, "sampling_parameters"),
        exclude_input_in_output=_flag(request, "exclude_input_in_output"),
        returns=frozenset(
            output for switch, output in RETURN_SWITCHES.items() if _flag(request, switch)
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
    return _text(request, "command") or b""


def read_call(request: Any) -> Call:
    """What reached the engine model; never fails, since whoever called must get an answer.

    A tensor that cannot be read counts as empty, and no ticket fits an empty one.
    """
    return Call(
        prompt=_text_or_empty(request, "prompt"),
        request=_text_or_empty(request, "request"),
        ticket=_text_or_empty(request, "ticket").decode("ascii", "replace"),
        early_accept=_early_accept(request),
    )


def _text_or_empty(request: Any, name: str) -> bytes:
    try:
        return _text(request, name) or b""
    except InvalidArgument:
        return b""


def _early_accept(request: Any) -> bool:
    try:
        return bool(_flag(request, "early_accept"))
    except InvalidArgument:
        return False
