"""The cross-attention gate: from a prompt's token embeddings to one weight per adapter and base.

Pure numpy, no clock, no I/O: the same prompt gets the same weights in every process.

    x = tokens / rms(tokens)                  [tokens, hidden]
    a = softmax(x·Q·Kᵀ / √width)              [tokens, choices]   what each token is about
    o = a·V                                   [tokens, width]
    p = (Σₜ sₜ·oₜ + r·V₀) / (Σₜ sₜ + r)        [width]           sₜ = 1 − aₜ₀
    w = softmax(p·Kᵀ · g / √width)            [choices]

``s`` keeps words of no domain from having a say. ``K`` and ``V`` have one learnt vector per choice,
the base model first (index 0). A choice that is masked out takes part in neither softmax, so that
the others and base still sum to one.
(Scaled dot-product attention: Vaswani et al., "Attention Is All You Need", §3.2.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from python_backend.adapters.naming import BASE

Floats = npt.NDArray[np.float32]

#: Below this a token's embedding counts as nothing rather than as noise made large.
_TINY = 1e-6


@dataclasses.dataclass(frozen=True)
class Gate:
    """A trained gate. All tensors fp32, finite.

    Args:
        names: lora_ids of the choices 1, 2, …; choice 0 is base.
        query: [hidden, width].
        keys, values: [1 + len(names), width].
        readout: [2]: ``g``, the sharpness of the weights, and ``r``, how much base has in advance.
        base: digest of the base model's embeddings it was trained on (``embeddings.digest``).
    """

    names: tuple[str, ...]
    query: Floats
    keys: Floats
    values: Floats
    readout: Floats
    base: str

    def weights(
        self, tokens: Floats, allowed: Collection[str], *, base: bool = True
    ) -> dict[str, float]:
        """The weight of each allowed adapter and of ``base``; they sum to one.

        Args:
            tokens: the prompt's token embeddings [tokens, hidden], at least one.
            allowed: lora_ids that may have a weight; those without a learnt key have none.
            base: whether the base model may have one.

        Raises:
            ValueError: nothing may have a weight.
        """
        kept = [0] if base else []
        kept += [at for at, name in enumerate(self.names, start=1) if name in allowed]
        if not kept:
            raise ValueError("neither base nor an adapter with a learnt key is allowed")
        found = forward(self, tokens, kept)
        names = [BASE if at == 0 else self.names[at - 1] for at in kept]
        return dict(zip(names, map(float, found), strict=True))


def forward(gate: Gate, tokens: Floats, kept: list[int]) -> Floats:
    """The weights [len(kept)] of the choices ``kept``, by the formula above."""
    x = tokens / np.maximum(np.sqrt(np.mean(tokens**2, axis=1, keepdims=True)), _TINY)
    keys, values = gate.keys[kept], gate.values[kept]
    narrow = 1.0 / math.sqrt(gate.keys.shape[1])
    attention = _softmax(x @ gate.query @ keys.T * narrow)
    # Where base is masked out, every token speaks for an adapter.
    says = 1.0 - attention[:, 0] if kept[0] == 0 else np.ones(len(x), np.float32)
    sharpness, advance = float(gate.readout[0]), float(gate.readout[1])
    pooled = (says @ (attention @ values) + advance * gate.values[0]) / (says.sum() + advance)
    return _softmax((pooled @ keys.T) * (sharpness * narrow))


def _softmax(scores: Any) -> Floats:
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Floats = (raised / raised.sum(axis=-1, keepdims=True)).astype(np.float32)
    return found


def keep_largest(
    weights: Mapping[str, float],
    ranks: Mapping[str, int],
    *,
    most: int,
    max_rank: int,
    least: float = 0.0,
) -> dict[str, float]:
    """The weights with all but the largest that fit together taken out, summing to one again.

    Args:
        ranks: of the adapters; those that are not in it count as 0.
        most: adapters at most.
        max_rank: their ranks together at most.
        least: what weighs less is taken out, base too, unless nothing weighs as much.
    """
    kept: dict[str, float] = {}
    count = rank = 0
    # By name where two weigh the same, so that the choice does not hang on an order of insertion.
    order = sorted(weights, key=lambda name: (-weights[name], name))
    for name in order:
        if kept and weights[name] < least:
            break
        if name == BASE:
            kept[name] = weights[name]
        elif count < most and rank + ranks.get(name, 0) <= max_rank:
            kept[name] = weights[name]
            count, rank = count + 1, rank + ranks.get(name, 0)
    total = sum(kept.values())
    return {name: weight / total for name, weight in kept.items()} if total > 0.0 else {}


def quantise(weights: Mapping[str, float], steps: int) -> dict[str, float]:
    """The weights on a grid of 1/``steps``, summing to one exactly as they did before.

    By largest remainder; on a grid few distinct fusions exist, and each is built once. What has
    become zero is left out.

    Args:
        weights: not negative, summing to one.
        steps: of the grid, such as 20 for 0.05.
    """
    scaled = {name: max(0.0, weight) * steps for name, weight in weights.items()}
    # The fp32 softmax may miss a whole step by its last bit.
    counts = {name: math.floor(value + 1e-4) for name, value in scaled.items()}
    missing = steps - sum(counts.values())
    order = sorted(scaled, key=lambda name: (counts[name] - scaled[name], name))
    for at in range(max(0, missing)):
        counts[order[at % len(order)]] += 1
    return {name: count / steps for name, count in counts.items() if count}
