"""Mixed distributions, against dense ones and vLLM's own rules written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.fusion.mixing import Distribution, choose, mixture, random_source

VOCABULARY = 60


def dense(seed: int, sharpness: float = 3.0) -> Any:
    logits = np.random.default_rng(seed).normal(size=VOCABULARY) * sharpness
    return np.exp(logits) / np.exp(logits).sum()


def likeliest(chances: Any, count: int) -> Distribution:
    ids = np.sort(np.argsort(-chances)[:count])
    return Distribution(ids, np.log(chances[ids]))


@given(
    st.integers(0, 10_000), st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3),
    st.integers(1, VOCABULARY),
)  # fmt: skip
def test_the_mixture_is_the_weighted_sum(seed: int, raw: list[float], known: int) -> None:
    weights = [weight / sum(raw) for weight in raw]
    parts = [dense(seed + n) for n in range(len(weights))]
    expected = sum(w * p for w, p in zip(weights, parts, strict=True))
    found = mixture([likeliest(p, known) for p in parts], weights, VOCABULARY)
    assert np.all(np.diff(found.logprobs) <= 0)
    assert len(set(found.ids.tolist())) == len(found.ids)
    # What a part does not tell is at most its least likely token that it tells.
    slack = sum(w * np.sort(p)[-known] for w, p in zip(weights, parts, strict=True))
    error = np.abs(np.exp(found.logprobs) - expected[found.ids])
    assert error.max() <= (slack if known < VOCABULARY else 0.0) + 1e-12
    if known == VOCABULARY:
        assert np.exp(found.logprobs).sum() == pytest.approx(1.0)


def test_by_hand() -> None:
    one = Distribution(np.array([3, 7]), np.log([0.6, 0.3]))
    two = Distribution(np.array([5, 7]), np.log([0.5, 0.4]))
    found = mixture([one, two], [0.75, 0.25], vocabulary=12)
    # Each leaves 0.1 to ten tokens: 0.01 for one that it does not tell.
    chances = {7: 0.225 + 0.1, 3: 0.45 + 0.0025, 5: 0.0075 + 0.125}
    assert found.ids.tolist() == [3, 7, 5]
    assert np.exp(found.logprobs) == pytest.approx([chances[int(i)] for i in found.ids])


def test_equally_likely_tokens_come_in_order() -> None:
    part = Distribution(np.array([4, 2, 9]), np.log([0.2, 0.2, 0.6]))
    assert mixture([part], [1.0], 10).ids.tolist()[0] == 9
    swapped = Distribution(np.array([2, 4, 9]), np.log([0.2, 0.2, 0.6]))
    assert mixture([swapped], [1.0], 10).ids.tolist() == [9, 2, 4]


MIXED = mixture([likeliest(dense(1, 1.0), VOCABULARY)], [1.0], VOCABULARY)


def allowed(sampling: dict[str, Any]) -> Any:
    """The chances by position that vLLM's rules leave: temperature, min_p, top_k, top_p."""
    chances = np.exp(MIXED.logprobs / sampling.get("temperature", 1.0))
    chances /= chances.sum()
    chances[chances < sampling.get("min_p", 0.0) * chances.max()] = 0.0
    if sampling.get("top_k", 0) > 0:
        chances[sampling["top_k"] :] = 0.0
    chances /= chances.sum()
    if sampling.get("top_p", 1.0) < 1.0:
        # Ascending, as vLLM: what lies within the smallest 1 - p goes, the likeliest stays.
        upwards = chances[::-1]
        gone = np.cumsum(upwards) <= 1.0 - sampling["top_p"]
        gone[-1] = False
        chances = np.where(gone[::-1], 0.0, chances)
    return chances / chances.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7, "top_k": 5},
        {"top_p": 0.6},
        {"top_p": 0.001},
        {"top_k": 1},
        {"top_k": 1000, "min_p": 0.2},
        {"temperature": 0.8, "top_k": 10, "top_p": 0.7, "min_p": 0.05},
    ],
)
def test_draws_are_distributed_as_they_should_be(sampling: dict[str, Any]) -> None:
    random = random_source(5)
    count = 4000
    drawn = np.bincount([choose(MIXED, sampling, random) for _ in range(count)], minlength=60)
    expected = allowed(sampling)
    assert np.all(drawn[expected == 0.0] == 0)
    # Five standard deviations of a binomial.
    slack = 5 * np.sqrt(count * expected * (1 - expected)) + 1e-9
    assert np.all(np.abs(drawn - count * expected) <= slack)


def test_greedy_takes_the_likeliest() -> None:
    assert choose(MIXED, {"temperature": 0.0, "top_k": 7}, random_source(None)) == 0


@settings(max_examples=20)
@given(st.integers(-(2**63), 2**63 - 1))
def test_a_seed_is_repeatable(seed: int) -> None:
    def draw(seed: int) -> list[int]:
        random = random_source(seed)
        return [choose(MIXED, {}, random) for _ in range(20)]

    assert draw(seed) == draw(seed)
    assert draw(seed) != draw(seed + 1 if seed < 2**63 - 1 else 0)
