"""Triton's request parameters: which of them are ours, and how they are found.

Forwarded HTTP headers arrive as parameters and keep the case the client wrote, so names of ours
are compared in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Parameters that are no sampling parameters: ours, and those Triton's front ends add.
NOT_SAMPLING = frozenset(
    {
        "authorization",
        "x-api-key",
        "x-lora-id",
        # Proves nothing, whoever forwards it: the department is the credential's.
        "x-department",
        "credential",
        "lora_id",
        "lora_name",
        "timeout_ms",
        "binary_data_output",
        "binary_data_size",
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
    }
)


def given(parameters: Mapping[str, Any], name: str) -> list[Any]:
    """Every value that is given under ``name`` (lower case) in whatever case; None is not given."""
    return [v for k, v in parameters.items() if v is not None and k.lower() == name]


def is_sampling(name: str) -> bool:
    """Whether a parameter of this name is meant for the sampler."""
    lowered = name.lower()
    return lowered not in NOT_SAMPLING and not lowered.startswith("triton_")
