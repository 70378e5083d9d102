"""Weights per prompt: against the formula written out in loops, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.fusion.gating import Gate, keep_largest, quantise
from tests.unit.python_backend.fusion.gate_house import HIDDEN, NAMES, make_gate, random

GATE = make_gate()


def softmax(scores: list[float]) -> list[float]:
    raised = [math.exp(score) for score in scores]
    return [value / sum(raised) for value in raised]


def by_hand(gate: Gate, tokens: list[list[float]], kept: list[int]) -> list[float]:
    """The docstring's formula, one number at a time."""
    width = gate.keys.shape[1]
    mixed, said = [0.0] * width, 0.0
    for token in tokens:
        rms = math.sqrt(sum(value**2 for value in token) / len(token))
        query = [
            sum(token[i] / rms * float(gate.query[i, j]) for i in range(len(token)))
            for j in range(width)
        ]
        attention = softmax(
            [
                sum(query[j] * float(gate.keys[at, j]) for j in range(width)) / math.sqrt(width)
                for at in kept
            ]
        )
        says = 1.0 - attention[0] if kept[0] == 0 else 1.0
        said += says
        for j in range(width):
            mixed[j] += says * sum(
                share * float(gate.values[at, j]) for share, at in zip(attention, kept, strict=True)
            )
    sharpness, advance = float(gate.readout[0]), float(gate.readout[1])
    pooled = [
        (mixed[j] + advance * float(gate.values[0, j])) / (said + advance) for j in range(width)
    ]
    return softmax(
        [
            sharpness
            * sum(pooled[j] * float(gate.keys[at, j]) for j in range(width))
            / math.sqrt(width)
            for at in kept
        ]
    )


@pytest.mark.parametrize(
    ("allowed", "base", "kept"),
    [(NAMES, True, [0, 1, 2, 3]), (NAMES[1:], True, [0, 2, 3]), (NAMES[:2], False, [1, 2])],
)
def test_the_formula(allowed: tuple[str, ...], base: bool, kept: list[int]) -> None:
    tokens = random(5, HIDDEN, seed=4)
    found = GATE.weights(tokens, allowed, base=base)
    expected = by_hand(GATE, tokens.tolist(), kept)
    assert list(found) == [("base", *NAMES)[at] for at in kept]
    assert list(found.values()) == pytest.approx(expected, abs=1e-5)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)


def test_the_same_prompt_has_the_same_weights_whatever_its_length_in_numbers() -> None:
    tokens = random(5, HIDDEN, seed=4)
    assert GATE.weights(tokens, NAMES) == GATE.weights(tokens.copy(), NAMES)
    scaled = GATE.weights(tokens * 1000, NAMES)
    assert scaled == pytest.approx(GATE.weights(tokens, NAMES), abs=1e-5)


def test_who_is_not_allowed_changes_nothing_among_the_others_but_their_sum() -> None:
    found = GATE.weights(random(3, HIDDEN), {"fin_risk_v1", "svc_other_v1"})
    assert found.keys() == {"base", "fin_risk_v1"}
    assert GATE.weights(random(3, HIDDEN), ()) == {"base": 1.0}


def test_nothing_allowed_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither base nor"):
        GATE.weights(random(3, HIDDEN), {"svc_other_v1"}, base=False)


def test_a_token_without_a_direction_says_nothing_special() -> None:
    found = GATE.weights(np.zeros((2, HIDDEN), np.float32), NAMES)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-3),
    st.integers(1, 100),
)
def test_a_grid_keeps_the_sum_and_moves_nothing_by_more_than_a_step(
    raw: list[float], steps: int
) -> None:
    weights = {f"a{at}": value / sum(raw) for at, value in enumerate(raw)}
    found = quantise(weights, steps)
    counts = [value * steps for value in found.values()]
    assert sum(map(round, counts)) == steps
    assert all(abs(count - round(count)) < 1e-6 and count > 0 for count in counts)
    for name, weight in weights.items():
        assert abs(found.get(name, 0.0) - weight) < 1 / steps + 1e-6


def test_the_grid_of_a_twentieth() -> None:
    assert quantise({"base": 0.111, "a": 0.529, "b": 0.36}, 20) == {
        "base": 0.1,
        "a": 0.55,
        "b": 0.35,
    }
    assert quantise({"base": 0.004, "a": 0.996}, 20) == {"a": 1.0}
    one_bit_short = np.float32(0.3) - np.float32(1e-6)
    assert quantise({"base": float(one_bit_short), "a": 0.700001}, 10) == {"base": 0.3, "a": 0.7}


def test_what_does_not_fit_together_leaves_its_weight_to_the_others() -> None:
    weights = {"base": 0.1, "a": 0.4, "b": 0.3, "c": 0.2}
    ranks = {"a": 8, "b": 16, "c": 8}
    assert keep_largest(weights, ranks, most=2, max_rank=16) == pytest.approx(
        {"a": 4 / 7, "c": 2 / 7, "base": 1 / 7}
    )
    assert keep_largest(weights, ranks, most=1, max_rank=16) == pytest.approx(
        {"a": 0.8, "base": 0.2}
    )
    assert keep_largest(weights, {}, most=3, max_rank=0, least=0.25) == pytest.approx(
        {"a": 4 / 7, "b": 3 / 7}
    )
    assert keep_largest({"a": 0.4, "b": 0.6}, {"a": 64, "b": 64}, most=2, max_rank=16) == {}
