"""Next-token distributions, mixed and drawn from. Pure numpy; the random source is an argument.

    P(t) = Σ wᵢ·pᵢ(t)

Of each part only its likeliest tokens are known. A token that is not among those of a part has
there an even share of what they leave, but never more than the least likely of them: an upper
bound of what it can have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: Below this vLLM samples greedily, and so does this.
GREEDY_BELOW = 1e-5

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The likeliest next tokens: distinct ids [k] and their log-probabilities [k], natural."""

    ids: Ids
    logprobs: Floats


def mixture(
    parts: Sequence[Distribution], weights: Sequence[float], vocabulary: int
) -> Distribution:
    """The mixed distribution over every token that a part has named, likeliest first.

    Args:
        weights: shares, one per part, summing to one.
        vocabulary: tokens that there are.
    """
    ids: Ids = np.unique(np.concatenate([part.ids for part in parts]))
    total = np.zeros(len(ids))
    for part, weight in zip(parts, weights, strict=True):
        known = np.exp(part.logprobs)
        left = max(0.0, 1.0 - float(known.sum())) / max(1, vocabulary - len(part.ids))
        chances = np.full(len(ids), min(left, float(known.min())))
        chances[np.searchsorted(ids, part.ids)] = known
        total += weight * chances
    # Stable, over ids in order: of two that are equally likely the lower id comes first.
    order = np.argsort(-total, kind="stable")
    with np.errstate(divide="ignore"):
        return Distribution(ids[order], np.log(total[order]))


def choose(mixed: Distribution, sampling: Mapping[str, Any], random: np.random.Generator) -> int:
    """The position in ``mixed`` of the token that is drawn.

    As vLLM does it: the temperature first, then ``min_p``, ``top_k`` and ``top_p`` in this order.
    """
    temperature = float(sampling.get("temperature", 1.0))
    if temperature < GREEDY_BELOW:
        return 0
    scaled = mixed.logprobs / temperature
    chances = np.exp(scaled - scaled[0])
    # Likeliest first: each of the three cuts off a tail.
    kept = len(chances)
    if (min_p := float(sampling.get("min_p", 0.0))) > 0.0:
        kept = int(np.count_nonzero(chances >= min_p))
    top_k = int(sampling.get("top_k", 0))
    if top_k > 0:
        kept = min(kept, top_k)
    chances = chances[: max(1, kept)]
    if (top_p := float(sampling.get("top_p", 1.0))) < 1.0:
        before = np.cumsum(chances) / chances.sum() - chances / chances.sum()
        chances = chances[: max(1, int(np.count_nonzero(before < top_p)))]
    return int(random.choice(len(chances), p=chances / chances.sum()))


def random_source(seed: int | None) -> np.random.Generator:
    """The same numbers for the same seed; for None different ones each time."""
    # Seeds of callers may be negative; numpy's may not.
    return np.random.default_rng(None if seed is None else seed % (1 << 64))
