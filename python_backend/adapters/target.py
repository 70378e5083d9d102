"""What the live engine can take: the modules, shapes and largest rank an adapter must fit.

Built from the running engine, never from a formula for one family of models, so that every family
that vLLM serves is judged by its own layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ModuleShape:
    """One layer that can carry a LoRA, with the sizes of the whole layer (not of a TP shard).

    A linear layer takes ``lora_A`` of [rank, in_features] and ``lora_B`` of [out_features, rank].
    For ``embedding``, ``in_features`` is the vocabulary and ``out_features`` the hidden size; for
    ``lm_head`` the other way round. Both count the base model's vocabulary without padding.
    """

    in_features: int
    out_features: int
    kind: Literal["linear", "embedding", "lm_head"] = "linear"


@dataclasses.dataclass(frozen=True)
class Target:
    """What an adapter must fit.

    Args:
        modules: by the path a PEFT file uses after ``base_model.model.`` and before
            ``.lora_A.weight``: ``model.layers.0.self_attn.q_proj``. Packed engine layers
            (``qkv_proj``) stand here as their parts.
        max_rank: the engine's ``max_lora_rank``.
        name_prefixes: (from, to) renames of a file's module path before the lookup, for models
            whose Hugging Face names differ from the engine's; the first that fits is applied.
        per_module_scaling: whether the engine honours ``rank_pattern`` and ``alpha_pattern``
            (vLLM 0.32 does). Where it does not, an adapter that needs them is refused.
        refused: modules of the served model that cannot carry an adapter, with the reason; an
            entry stands for all below it (``model.layers.1.mlp.experts``).
    """

    modules: Mapping[str, ModuleShape]
    max_rank: int
    name_prefixes: tuple[tuple[str, str], ...] = ()
    per_module_scaling: bool = True
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def module_path(self, path: str) -> str:
        """The engine's path of the layer that a file calls ``path``; it may not exist."""
        for old, new in self.name_prefixes:
            if path.startswith(old):
                return new + path.removeprefix(old)
        return path

    def refusal(self, path: str) -> str | None:
        """Why the layer that a file calls ``path`` cannot carry an adapter, if that is known."""
        parts = self.module_path(path).split(".")
        above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((self.refused[name] for name in above if name in self.refused), None)
