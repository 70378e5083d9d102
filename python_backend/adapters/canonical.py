"""The canonical ``adapter_config.json`` of a staged adapter: only what the engine needs.

Patterns are resolved to exact module paths: an expression of the file would be evaluated by the
engine, inside its step.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Mapping
from typing import Any

from python_backend.adapters.peft_config import PeftConfig

_BEGIN, _END = "^(?:", ")"


def config(
    peft: PeftConfig, ranks: Mapping[str, int], alphas: Mapping[str, float]
) -> dict[str, Any]:
    """The configuration of an adapter with these modules.

    Args:
        ranks, alphas: of each module, by its path in the file.
    """
    return {
        "peft_type": "LORA",
        "r": peft.r,
        "lora_alpha": _number(peft.lora_alpha),
        "target_modules": sorted({path.rpartition(".")[2] for path in ranks}),
        "bias": "none",
        "use_rslora": peft.use_rslora,
        "rank_pattern": _exact({p: r for p, r in ranks.items() if r != peft.r}),
        "alpha_pattern": _exact({p: a for p, a in alphas.items() if a != peft.lora_alpha}),
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
    }


def _number(value: float) -> float:
    """``value`` as PEFT writes it: without a point where it is whole."""
    return int(value) if value == int(value) else value


def _exact(values: dict[str, float]) -> dict[str, float]:
    """A pattern per distinct value: one for each path would make vLLM's matching quadratic."""
    groups: dict[float, list[str]] = collections.defaultdict(list)
    for path, value in sorted(values.items()):
        groups[value].append(re.escape(path))
    return {f"{_BEGIN}{'|'.join(paths)}{_END}": _number(v) for v, paths in groups.items()}


class Scalings:
    """The scaling of each module of a staged adapter, from what ``config`` has made."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._alpha, self._rslora = float(made["lora_alpha"]), bool(made["use_rslora"])
        self._alphas = {
            re.sub(r"\\(.)", r"\1", path): float(alpha)
            for pattern, alpha in made["alpha_pattern"].items()
            for path in pattern.removeprefix(_BEGIN).removesuffix(_END).split("|")
        }

    def of(self, path: str, rank: int) -> float:
        """alpha/rank of the module that the file calls ``path``, or alpha/√rank with rsLoRA."""
        alpha = self._alphas.get(path, self._alpha)
        return alpha / (math.sqrt(rank) if self._rslora else rank)
