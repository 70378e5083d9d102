"""How many users there are when."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from loadtests.shapes import Burst, OnOff, Ramp, Shape, Soak, Step


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Soak(users=5), {0: 5, 100: 5}),
        (Ramp(users=10, over_s=20), {0: 0, 1: 0, 2: 1, 10: 5, 19.9: 9, 20: 10, 99: 10}),
        (Step(users=8, after_s=30), {0: 0, 29.9: 0, 30: 8, 90: 8}),
        (Step(users=8, after_s=30, before=2), {0: 2, 31: 8}),
        (Burst(users=9, from_s=10, for_s=5, base=1), {0: 1, 10: 9, 14.9: 9, 15: 1}),
        (OnOff(users=3, on_s=60, off_s=60), {0: 3, 59: 3, 60: 0, 119: 0, 120: 3, 185: 0}),
    ],
)
def test_users_by_time(shape: Shape, expected: dict[float, int]) -> None:
    assert {t: shape.at(t) for t in expected} == expected


@pytest.mark.parametrize(
    "shape", [Soak(users=1), Ramp(users=2, over_s=3), OnOff(users=1, on_s=1, off_s=0)]
)
def test_a_shape_comes_back_from_json(shape: Shape) -> None:
    found: object = TypeAdapter(Shape).validate_json(shape.model_dump_json())
    assert found == shape


@pytest.mark.parametrize("text", ['{"kind": "ramp", "users": 1, "over_s": 0}', '{"kind": "hill"}'])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Shape).validate_json(text)
