"""Adapters of the tiny models, made and saved by peft, with weights that change every output."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

#: Family → adapter → peft's configuration. All that peft's ``all-linear`` finds, some of it, and
#: ranks and scalings that differ by module.
_DENSE: dict[str, dict[str, Any]] = {
    "all": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    "some": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "patterns": {
        "r": 4,
        "lora_alpha": 6,
        "use_rslora": True,
        "target_modules": ["k_proj", "o_proj", "up_proj", "down_proj"],
        "rank_pattern": {"layers.0.self_attn.o_proj": 8, "up_proj": 2},
        "alpha_pattern": {"down_proj": 3},
    },
}
_ENDS = {
    "ends": {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head", "o_proj"]},
}


def _below(*modules: str) -> dict[str, Any]:
    # An expression: peft rewrites lists for models with experts to tensors that are no LoRA.
    pattern = r".*\.(" + "|".join(modules) + ")"
    return {"r": 4, "lora_alpha": 8, "target_modules": pattern}


_LATENT: dict[str, dict[str, Any]] = {
    "attention": _below("q_a_proj", "q_b_proj", "q_proj", "kv_a_proj_with_mqa", "o_proj"),
    "half": _below("kv_a_proj_with_mqa"),
    "mlp": _below("gate_proj", "up_proj", "down_proj"),
    # What the engine cannot do, and must not be accepted.
    "bad-all": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "bad-merged": _below("kv_b_proj", "o_proj"),
}
ADAPTERS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {**_DENSE, **_ENDS},
    "llama-tied": {**_DENSE, **_ENDS},
    "llama-one-key": _DENSE,
    "llama-small-heads": {},
    "qwen2": _DENSE,
    "qwen3": _DENSE,
    "qwen3-moe": {},
    "deepseek": {},
    "deepseek-dense": _LATENT,
    "deepseek-whole-query": _LATENT,
}
#: Family → mixture → adapters and weights.
_MIXED: dict[str, list[tuple[str, float]]] = {
    "two": [("all", 0.6), ("some", 0.3)],
    "three": [("patterns", 0.7), ("some", -0.4), ("all", 0.2)],
    "scaled": [("patterns", 0.5)],
    "none": [("all", 1.0), ("all", -1.0)],
}
MIXTURES: dict[str, dict[str, list[tuple[str, float]]]] = {
    "llama": {**_MIXED, "ends": [("ends", 0.6), ("patterns", 0.5)]},
    "qwen2": _MIXED,
    "qwen3": _MIXED,
}


def make(family: str, base: torch.nn.Module, root: Path) -> dict[str, Path]:
    """Writes the family's adapters below ``root``: name → folder."""
    folders = {}
    for number, (name, settings) in enumerate(ADAPTERS[family].items()):
        torch.manual_seed(number + 1)
        config = LoraConfig(task_type="CAUSAL_LM", **settings)
        model = get_peft_model(copy.deepcopy(base), config)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    parameter.normal_(std=0.15)
        folders[name] = root / name
        # Not the base's own embedding, which peft saves along "to be safe".
        model.save_pretrained(folders[name], save_embedding_layers=False)
    return folders
