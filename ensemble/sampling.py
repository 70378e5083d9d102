"""Sampling parameters: from whatever way they came to the canonical, capped form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ensemble import parameters, structured
from ensemble import sampling_types as types
from ensemble.strict_json import parse_json
from python_backend.errors import InvalidArgument
from python_backend.messages import RawRequest
from python_backend.settings import LimitSettings
from python_backend.strict_json import safe_name

MAX_JSON_BYTES = 256 << 10

#: Every parameter that is accepted. Ranges are vLLM's own (0.24 to 0.32), so that what it would
#: refuse, or its int32 tensors could not hold, is refused here.
TABLE: dict[str, types.Reader] = {
    "n": types.integer(1, types.INT32_MAX),
    "presence_penalty": types.number(-2.0, 2.0),
    "frequency_penalty": types.number(-2.0, 2.0),
    "repetition_penalty": types.number(0.0, above=True),
    "temperature": types.number(0.0, 2.0),
    "top_p": types.number(0.0, 1.0, above=True),
    "top_k": types.integer(-1, types.INT32_MAX),
    "min_p": types.number(0.0, 1.0),
    "seed": types.integer(),
    "stop": types.texts(16, 256, single=True),
    "stop_token_ids": types.token_ids(128),
    "bad_words": types.texts(128, 256),
    "include_stop_str_in_output": types.boolean,
    "ignore_eos": types.boolean,
    "max_tokens": types.integer(1),
    "min_tokens": types.integer(0),
    "logprobs": types.integer(-1),
    "skip_special_tokens": types.boolean,
    "spaces_between_special_tokens": types.boolean,
    "logit_bias": types.logit_bias(1024),
    "allowed_token_ids": types.token_ids(16_384, least=1),
    "structured_outputs": structured.read,
}
#: Where null is vLLM's own word for "not given".
_NULLABLE = frozenset(
    {
        "seed",
        "stop",
        "stop_token_ids",
        "bad_words",
        "logprobs",
        "logit_bias",
        "allowed_token_ids",
        "structured_outputs",
    }
)
_OLDER_NAMES = {"guided_decoding": "structured_outputs"}
#: Below this vLLM samples greedily.
_GREEDY_BELOW = 1e-5

_TIMEOUT_MS = types.integer()


def requested(raw: RawRequest) -> tuple[dict[str, Any], Any]:
    """The sampling parameters as they were sent, unchecked, and the JSON's ``lora_name``.

    The ``sampling_parameters`` tensor replaces the request parameters, as in the official backend.

    Raises:
        InvalidArgument: the tensor is not a JSON object.
    """
    if raw.sampling_parameters is None:
        return {k: v for k, v in raw.parameters.items() if parameters.is_sampling(k)}, None
    field = "sampling_parameters"
    found = parse_json(field, raw.sampling_parameters, max_bytes=MAX_JSON_BYTES)
    if not isinstance(found, dict):
        raise InvalidArgument(field, "must be a JSON object")
    return found, found.pop("lora_name", None)


def canonical(given: Mapping[str, Any], limits: LimitSettings) -> dict[str, Any]:
    """The given parameters, of the right types and within vLLM's ranges and the caps.

    ``max_tokens`` is always there; everything else only if it was given.

    Raises:
        InvalidArgument: names the parameter at fault.
    """
    found: dict[str, Any] = {}
    for sent, value in given.items():
        name = _OLDER_NAMES.get(sent, sent)
        reader = TABLE.get(name)
        if reader is None:
            raise InvalidArgument(safe_name(sent), "not a known sampling parameter")
        if value is None and name in _NULLABLE:
            continue
        if name in found:
            raise InvalidArgument(name, "given under two names")
        found[name] = reader(name, value)
    found.setdefault("max_tokens", limits.default_max_tokens)
    _check_caps(found, limits)
    _check_together(found)
    return found


def _check_caps(found: Mapping[str, Any], limits: LimitSettings) -> None:
    for name, cap in (
        ("max_tokens", limits.max_tokens),
        ("n", limits.n),
        ("logprobs", limits.logprobs),
    ):
        value = found.get(name, 0)
        if value > cap:
            raise InvalidArgument(name, f"{value} is above this server's cap of {cap}")
    if found.get("logprobs") == -1:
        raise InvalidArgument(
            "logprobs",
            f"-1 (the whole vocabulary) is above this server's cap of {limits.logprobs}",
        )


def _check_together(found: Mapping[str, Any]) -> None:
    """vLLM's checks over more than one parameter."""
    if found.get("min_tokens", 0) > found["max_tokens"]:
        raise InvalidArgument("min_tokens", f"above max_tokens, which is {found['max_tokens']}")
    if found.get("temperature", 1.0) < _GREEDY_BELOW and found.get("n", 1) > 1:
        raise InvalidArgument("n", "must be 1 at temperature 0: every sequence would be the same")


def deadline_s(raw: RawRequest, cap_s: float) -> float:
    """Seconds that the request may take: the smallest of ``timeout_ms``, Triton's and the cap.

    Raises:
        InvalidArgument: ``timeout_ms`` is not a positive whole number.
    """
    deadline = cap_s
    for value in parameters.given(raw.parameters, "timeout_ms"):
        timeout_ms = _TIMEOUT_MS("timeout_ms", value)
        if timeout_ms <= 0:
            raise InvalidArgument("timeout_ms", "must be above 0")
        deadline = min(deadline, timeout_ms / 1e3)
    if raw.timeout_us > 0:
        deadline = min(deadline, raw.timeout_us / 1e6)
    return deadline
