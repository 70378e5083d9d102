"""What mode ``distribution`` refuses, and the settings of it and of ``auto``."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from python_backend.auto_settings import AutoSettings, DistributionSettings
from python_backend.errors import InvalidArgument
from python_backend.fusion.distribution import SAMPLING, check, streams
from python_backend.fusion.expression import Terms

A, B, C = "fin_risk_v1", "qa_testgen_v1", "svc_chat_v1"
SETTINGS = DistributionSettings(max_tokens=64)
GOOD: Terms = ((A, 0.5), (B, 0.3))


@pytest.mark.parametrize(
    ("terms", "count"),
    [
        ((), 1),
        (((A, 1.0),), 1),
        (((A, 0.4),), 2),
        (GOOD, 3),
        (((A, 0.5), (B, 0.5)), 2),
        (((A, 0.3), (B, 0.3), (C, 0.4)), 3),
        # Decimals that binary numbers do not hit: base has no share.
        (((A, 0.7), (B, 0.2), (C, 0.1)), 3),
    ],
)
def test_base_is_a_part_where_it_has_a_share(terms: Terms, count: int) -> None:
    assert streams(terms) == count
    check(terms, {"max_tokens": 64}, SETTINGS)


def test_every_parameter_that_it_takes() -> None:
    check(GOOD, {**dict.fromkeys(SAMPLING, 1), "n": 1}, SETTINGS)


@pytest.mark.parametrize(
    ("terms", "sampling", "field"),
    [
        (((A, 0.3), (B, 0.3), (C, 0.3)), {}, "fusion.weights"),
        (((A, 1.1),), {}, "fusion.weights"),
        (((A, 1.1), (B, -0.1)), {}, "fusion.weights"),
        (GOOD, {"max_tokens": 65}, "max_tokens"),
        (GOOD, {"n": 2}, "n"),
        (GOOD, {"logit_bias": {"1": 1.0}}, "logit_bias"),
        (GOOD, {"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        (GOOD, {"repetition_penalty": 1.1}, "repetition_penalty"),
        (GOOD, {"min_tokens": 1}, "min_tokens"),
    ],
)
def test_refused(terms: Terms, sampling: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        check(terms, {"max_tokens": 16, **sampling}, SETTINGS)
    assert error.value.field == field


def test_switched_off() -> None:
    with pytest.raises(InvalidArgument, match="not served here"):
        check(GOOD, {"max_tokens": 1}, DistributionSettings(candidates=0))


@pytest.mark.parametrize(
    ("grid", "steps"), [(0.05, 20), (0.1, 10), (1, 1), (0.125, 8), (0.001, 1000)]
)
def test_grids(grid: float, steps: int) -> None:
    assert AutoSettings(grid=grid).steps == steps


@pytest.mark.parametrize("grid", [0, -0.1, 0.3, 1 / 3, 2, float("nan"), 1e-9])
def test_no_grids(grid: float) -> None:
    with pytest.raises(ValidationError):
        AutoSettings(grid=grid)
