"""What mode ``distribution`` can do: checked by the gate before it signs, and by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_backend.auto_settings import DistributionSettings
from python_backend.errors import InvalidArgument
from python_backend.fusion import expression
from python_backend.fusion.expression import Terms

DISTRIBUTION = "distribution"
#: Sampling parameters that have a meaning for a mixture of distributions.
SAMPLING = frozenset(
    {
        "max_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "logprobs",
    }
)
_MODE = "fusion.mode"


def streams(terms: Terms) -> int:
    """Parts that are decoded: the adapters, and base where it has a share."""
    return len(terms) + (expression.base_share(terms) > 0)


def check(terms: Terms, sampling: Mapping[str, Any], settings: DistributionSettings) -> None:
    """Returns if a request can be answered in this mode.

    Raises:
        InvalidArgument: names what stands against it.
    """
    if not settings.candidates:
        raise InvalidArgument(_MODE, "distribution is not served here")
    if any(weight < 0 for _, weight in terms) or expression.base_share(terms) < 0:
        raise InvalidArgument(
            "fusion.weights", "in mode distribution weights are shares: from 0, and 1 together"
        )
    if streams(terms) > settings.max_parts:
        raise InvalidArgument(
            "fusion.weights",
            f"mode distribution takes at most {settings.max_parts} parts, base among them where "
            "the weights do not add up to 1",
        )
    for name, value in sampling.items():
        if name == "n" and value == 1:
            continue
        if name not in SAMPLING:
            raise InvalidArgument(name, "is not for mode distribution")
    if sampling["max_tokens"] > settings.max_tokens:
        raise InvalidArgument(
            "max_tokens", f"mode distribution answers with at most {settings.max_tokens} tokens"
        )
