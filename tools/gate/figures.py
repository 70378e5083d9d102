"""What a trained gate is worth: accuracy and calibration on prompts it has not seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from python_backend.fusion.embeddings import Embeddings
from python_backend.fusion.gating import Gate
from tools.gate.examples import Example
from tools.gate.trainer import Encode

#: A choice with at least this target weight is one that the prompt is for.
_MEANT = 0.2
_BINS = 10


@dataclasses.dataclass(frozen=True)
class Figures:
    """On held-out prompts.

    ``accuracy``: the share of prompts for which as many of the heaviest choices as are meant are
    the ones that are meant. ``weight_error``: mean absolute difference of a meant choice's weight
    and its target. ``calibration_error``: see ``calibration_error``.
    """

    prompts: int
    accuracy: float
    weight_error: float
    calibration_error: float


def measure(gate: Gate, embeddings: Embeddings, encode: Encode, examples: list[Example]) -> Figures:
    """The figures of ``gate`` on ``examples``, of which there is at least one."""
    right, errors = 0, []
    confidences: list[float] = []
    masses: list[float] = []
    for example in examples:
        found = gate.weights(embeddings.rows(encode(example.prompt)), gate.names)
        meant = {name for name, weight in example.target.items() if weight >= _MEANT}
        heaviest = sorted(found, key=lambda name: -found[name])
        right += set(heaviest[: len(meant)]) == meant
        errors += [abs(found[name] - example.target[name]) for name in meant if name in found]
        confidences.append(found[heaviest[0]])
        masses.append(example.target.get(heaviest[0], 0.0))
    return Figures(
        len(examples),
        right / len(examples),
        sum(errors) / max(1, len(errors)),
        calibration_error(confidences, masses),
    )


def calibration_error(confidences: Sequence[float], masses: Sequence[float]) -> float:
    """Expected calibration error in ten bins (Guo et al., "On Calibration of Modern Networks").

    For a mixture the mass of the heaviest choice is its target weight, for a single adapter 1 or 0.
    """
    total = 0.0
    for low in range(_BINS):
        inside = [
            at for at, value in enumerate(confidences) if min(_BINS - 1, int(value * _BINS)) == low
        ]
        if inside:
            confidence = sum(confidences[at] for at in inside) / len(inside)
            mass = sum(masses[at] for at in inside) / len(inside)
            total += len(inside) * abs(confidence - mass)
    return total / max(1, len(confidences))
