"""Mixtures as callers write them: one spelling of a number, one form of a mixture."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend import strict_json
from python_backend.errors import InvalidArgument
from python_backend.fusion import expression
from python_backend.fusion.expression import Terms
from python_backend.fusion_settings import FusionSettings

SETTINGS = FusionSettings()
A, B = "fin_tone_v3", "svc_chat_v1"


def canonical(text: str, settings: FusionSettings = SETTINGS, **aliases: str) -> Terms:
    terms = expression.parse(text, settings)
    return expression.resolved(terms, lambda name: aliases.get(name, name), settings)


@pytest.mark.parametrize(
    ("text", "terms", "base"),
    [
        (f"{A}*0.6+{B}*0.3", ((A, 0.6), (B, 0.3)), 0.1),
        (f"{B}*0.3+{A}*0.6", ((A, 0.6), (B, 0.3)), 0.1),
        (f"{A}*1", ((A, 1.0),), 0.0),
        (f"{A}*0", ((A, 0.0),), 1.0),
        (f"{A}*-0", ((A, 0.0),), 1.0),
        (f"{A}*0.50+{A}*0.5", ((A, 1.0),), 0.0),
        (f"{A}*1+{B}*-0.25", ((A, 1.0), (B, -0.25)), 0.25),
        (f"{A}*0.1+{A}*0.2", ((A, 0.3),), 0.7),
        (f"{A}*1.000000+{B}*0.000001", ((A, 1.0), (B, 0.000001)), -0.000001),
    ],
)
def test_good_ones(text: str, terms: Terms, base: float) -> None:
    found = canonical(text)
    assert found == terms
    assert expression.base_share(found) == base
    # Printed and read again it is the same.
    assert canonical(expression.text(found)) == found


def test_what_is_printed_is_short() -> None:
    assert expression.text(canonical(f"{B}*0.30+{A}*2.0+{B}*-0.9")) == f"{A}*2+{B}*-0.6"


def test_aliases_of_one_adapter_are_one_part() -> None:
    assert canonical(f"risk*0.5+{A}*0.25+chat*0.25", risk=A, chat=B) == ((A, 0.75), (B, 0.25))


@pytest.mark.parametrize(
    "text",
    [
        "*", "+", "**", "++", "*0.5", f"{A}*", f"{A}*0.5+", f"+{A}*0.5", f"{A}*0.5++{B}*0.5",
        f"{A}+{B}", f"{A}*0.5*0.5", f"({A}*0.5+{B}*0.5)*0.5+{B}*0.5", f"{A}*1e", f"{A}*1e1",
        f"{A}*1e30", f"{A}*1E-1", f"{A}*nan", f"{A}*NaN", f"{A}*inf", f"{A}*-inf", f"{A}*0x1",
        f"{A}*٠.٥", f"{A}*０.５", f"{A}*½", f"{A}*0,5", f"{A}*.5", f"{A}*5.", f"{A}*00.5",
        f"{A}*--1", f"{A}*-", f"{A}*+1", f"{A}*1_0", f"{A}*0.1234567", f"{A}*'1'",
        f"{A} * 0.5", f"{A}*0.5 +{B}*0.5", f"\t{A}*0.5", f"{A}*0.5\n", f"{A}*0.5\0",
        f"{A}*99999", f"{A}*0.5+{B}*", "+".join(f"{A}*0.0001" for _ in range(10_000)),
        "+".join([f"{A}*0.1"] * 9), f"{A}*" + "1" * 100_000, "*" * 3000,
    ],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    assert expression.is_expression(text)
    with pytest.raises(InvalidArgument) as error:
        expression.parse(text, SETTINGS)
    assert error.value.field == "lora_id"
    assert A not in error.value.message and len(error.value.message) < 200


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{A}*2.5", "a weight is beyond 2"),
        (f"{A}*-2.1+{B}*2", "a weight is beyond 2"),
        (f"{A}*1.5+{A}*1.5", "a weight is beyond 2"),
        (f"{A}*1.5+{B}*0.6", "add up to 2.1"),
        (f"{A}*-0.1", "add up to -0.1"),
        (f"{A}*0.5+base*0.5", "base has no weight of its own"),
    ],
)
def test_out_of_range(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        canonical(text)


def test_the_ranges_are_settings() -> None:
    wide = FusionSettings(max_weight=10, min_sum=-5, max_sum=5, max_parts=1)
    assert canonical(f"{A}*-4.5", wide) == ((A, -4.5),)
    with pytest.raises(InvalidArgument, match="at most 1"):
        canonical(f"{A}*0.5+{B}*0.5", wide)
    with pytest.raises(ValueError, match="min_sum is above max_sum"):
        FusionSettings(min_sum=1.1, max_sum=1)


def test_plain_names_are_none() -> None:
    for name in (A, "base", "Risk.Ctrl-1", "none"):
        assert not expression.is_expression(name)


def test_an_object() -> None:
    found = expression.of_object({A: 0.6, B: 1}, SETTINGS)
    assert found == ((A, 0.6), (B, 1.0))


@pytest.mark.parametrize(
    "body",
    [
        "[]", "{}", "null", "1", '"x"', f'{{"{A}": "0.5"}}', f'{{"{A}": true}}', f'{{"{A}": null}}',
        f'{{"{A}": [1]}}', f'{{"{A}": 1e30}}', f'{{"{A}": -3}}', f'{{"{A}": 1{"0" * 4000}}}',
        f'{{"{A}*0.5": 1}}', json.dumps({f"a{i}_b_v1": 0.1 for i in range(9)}),
    ],
)  # fmt: skip
def test_what_is_no_object_of_weights(body: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        expression.of_object(strict_json.loads(body), SETTINGS)
    assert error.value.field == "fusion.weights"


@given(st.one_of(st.text(), st.from_regex(r"([a-z_0-9]*\*-?[0-9.e]*\+?){1,4}", fullmatch=True)))
def test_any_text_is_either_canonical_or_an_invalid_argument(text: str) -> None:
    try:
        found = canonical(text)
    except InvalidArgument:
        return
    assert canonical(expression.text(found)) == found
    assert list(found) == sorted(dict(found).items())


@given(st.dictionaries(st.text(max_size=3), st.floats() | st.integers() | st.text(), max_size=9))
def test_any_object_likewise(weights: dict[str, Any]) -> None:
    try:
        found = expression.resolved(
            expression.of_object(weights, SETTINGS), lambda name: name, SETTINGS
        )
    except InvalidArgument:
        return
    assert all(abs(weight) <= SETTINGS.max_weight for _, weight in found)
    assert -1.0 <= expression.base_share(found) <= 1.0
