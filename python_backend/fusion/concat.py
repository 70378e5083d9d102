"""The exact adapter of a mixture, module by module. Pure; float32.

With LoRAᵢ(x) = (W + sᵢ·Bᵢ·Aᵢ)·x, the mixture Σ wᵢ·LoRAᵢ(x) + (1 − Σ wᵢ)·W·x is (W + B·A)·x for

    A = [A₁; A₂; …]               rank Σ rᵢ, rows of all parts
    B = [w₁·s₁·B₁, w₂·s₂·B₂, …]   columns of all parts

so it is an adapter of its own with the scaling 1. Weights stand on one side alone: on both, their
roots would have to be taken, which a negative one has not (and which mixes A₁ with B₂).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Factors:
    """One module of one adapter.

    Args:
        a: [rank, in_features], any float dtype.
        b: [out_features, rank].
        scale: alpha/rank, or alpha/√rank where the adapter uses rsLoRA.
    """

    a: npt.NDArray[Any]
    b: npt.NDArray[Any]
    scale: float


def summed_ranks(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The rank of each module of the mixture; a part that lacks a module has rank 0 there.

    Args:
        parts: the true rank of each module, by its path in the engine.
    """
    ranks: dict[str, int] = {}
    for part in parts:
        for module, rank in part.items():
            ranks[module] = ranks.get(module, 0) + rank
    return ranks


def fuse(parts: Sequence[tuple[Factors, float]]) -> tuple[Array, Array]:
    """A and B of one module; its scaling is 1.

    Args:
        parts: those that have the module, at least one, each with its weight.

    Returns:
        A [Σ rank, in_features] and B [out_features, Σ rank], float32.
    """
    first = parts[0][0]
    rank = sum(factors.a.shape[0] for factors, _ in parts)
    a = np.empty((rank, first.a.shape[1]), np.float32)
    b = np.empty((first.b.shape[0], rank), np.float32)
    begin = 0
    for factors, weight in parts:
        end = begin + factors.a.shape[0]
        a[begin:end] = factors.a
        scale = np.float32(weight * factors.scale)
        # By its dtype and not by that of the operands, which would be half precision of halves.
        np.multiply(factors.b, scale, out=b[:, begin:end], dtype=np.float32, casting="same_kind")
        begin = end
    return a, b
