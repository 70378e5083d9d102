"""What reaches vLLM, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from python_backend.engine.base import Job
from python_backend.engine.convert import check_token_ids
from python_backend.errors import InvalidArgument
from python_backend.messages import EngineRequest

VOCABULARY = 100


def job(**sampling: Any) -> Job:
    return Job("uid", (1,), EngineRequest(sampling), None, "salt")


@pytest.mark.parametrize(
    "sampling",
    [{}, {"stop_token_ids": [0, 99]}, {"allowed_token_ids": [99]}, {"logit_bias": {"99": 1.0}}],
)
def test_ids_of_the_vocabulary_pass(sampling: dict[str, Any]) -> None:
    check_token_ids(job(**sampling), VOCABULARY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", [5, 100]),
        ("allowed_token_ids", [2**31 - 1]),
        ("logit_bias", {"100": 1.0}),
    ],
)
def test_ids_beyond_it_do_not(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{field}: holds a token id of 100 or above"):
        check_token_ids(job(**{field: value}), VOCABULARY)
