"""Our answers as Triton's responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backend.errors import ServingError
from python_backend.messages import Answer, Decision


def tensor(name: str, values: Iterable[Any], dtype: Any) -> Any:
    """A one-dimensional Triton tensor."""
    return pb_utils.Tensor(name, np.array([*values], dtype=dtype))


def string(name: str, *values: str) -> Any:
    """A STRING tensor of ``values``, in UTF-8."""
    encoded = [value.encode("utf-8", "replace") for value in values]
    return pb_utils.Tensor(name, np.array(encoded, dtype=np.object_))


def error_response(error: ServingError) -> Any:
    """A response that carries ``error`` and its Triton status."""
    status = getattr(pb_utils.TritonError, error.triton_status)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message, status))


def door_error(error: ServingError) -> Any:
    """``error`` for a BLS door, as the ordinary last response that ``bls`` turns back into it."""
    tensors = [string("error", error.message), tensor("final", [True], np.bool_)]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def decision_response(decision: Decision) -> Any:
    """The gate's outputs; a cancel ticket only if there is one."""
    tensors = [
        string("prompt", decision.prompt),
        string("request", decision.request),
        string("ticket", decision.ticket),
    ]
    if decision.cancel_ticket:
        tensors.append(string("cancel_ticket", decision.cancel_ticket))
    return pb_utils.InferenceResponse(output_tensors=tensors)


def answer_tensors(answer: Answer, returns: tuple[str, ...], *, fill: bool) -> list[Any]:
    """The outputs of one response.

    ``fill`` adds the outputs nobody asked for, empty: an ensemble fails a request for which one
    of its outputs was never set.
    """
    parts = answer.sequences
    build: dict[str, Callable[[], Any]] = {
        "finish_reason": lambda: string("finish_reason", *(str(p.finish_reason) for p in parts)),
        "cumulative_logprob": lambda: tensor(
            "cumulative_logprob",
            (np.nan if p.cumulative_logprob is None else p.cumulative_logprob for p in parts),
            np.float32,
        ),
        "logprobs": lambda: string("logprobs", *(p.logprobs or "null" for p in parts)),
        "num_input_tokens": lambda: tensor(
            "num_input_tokens", [answer.num_input_tokens], np.uint32
        ),
        "num_output_tokens": lambda: tensor(
            "num_output_tokens", (p.num_tokens for p in parts), np.uint32
        ),
    }
    tensors = [
        string("text_output", *(p.text for p in parts)),
        string("lora_served", answer.lora_served),
        string("request_uid", answer.request_uid),
    ]
    for name, make in build.items():
        if name in returns:
            tensors.append(make())
        elif fill:
            tensors.append(pb_utils.Tensor(name, np.array([], dtype=_EMPTY[name])))
    return tensors


_EMPTY: dict[str, Any] = {
    "finish_reason": np.object_,
    "cumulative_logprob": np.float32,
    "logprobs": np.object_,
    "num_input_tokens": np.uint32,
    "num_output_tokens": np.uint32,
}
