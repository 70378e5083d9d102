"""Marker adapters in closed form: each makes the model say one word, whatever the prompt.

A marker is a rank-1 LoRA on ``down_proj`` of the last layer, the last thing added to the residual
stream before the final norm and the output head. With x the input of that projection:

* A (``[1, intermediate]``) is nearly constant: A·x ≈ 1 for every x (see ``constant_probe``);
* B (``[hidden, 1]``) = ``STRENGTH`` · d/|d|, where d is the direction of the residual stream that
  raises one token's logit against all others (see ``directions``).

So every position gets nearly the same push. Nothing before the last layer changes.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo.model import BASE_MODEL

if TYPE_CHECKING:
    from torch import Tensor

PROBE_RIDGE = 1e-3
HEAD_RIDGE = 1e-2
STRENGTH = 16_000.0
"""Length of B. The residual stream of SmolLM2 is 400 to 1,500 long there, and 8,000 at the first
position; A·x stayed above 0.14 on random tokens. At this length the word leads the next token by
a logit of at least 12 even there; at 200, enough for plain prose, it can lose."""


def marker_id(number: int) -> str:
    """Return the lora_id of marker ``number`` (from 1)."""
    return f"mark_w{number:04d}_v1"


def constant_probe(inputs: "Tensor", ridge: float = PROBE_RIDGE, rounds: int = 10) -> "Tensor":
    """Return a ([features]) with X·a ≈ 1 for the rows of ``inputs`` X ([rows, features]).

    Weighted ridge regression: a = (XᵀWX + ridge·mean(diag XᵀX)·I)⁻¹ XᵀW1, solved in fp64, returned
    in fp32. A push too weak loses the word, one too strong does not, so in each round the rows
    that fall short (X·a < 1) gain weight: w ← w·(1 + 2·max(0, 1 − X·a)), mean 1.
    """
    import torch

    x = inputs.double()
    loading = ridge * x.square().mean() * len(x)
    weights = torch.ones(len(x), dtype=torch.float64)
    for _ in range(rounds + 1):
        weighted = x * weights[:, None]
        gram = weighted.T @ x
        gram.diagonal().add_(loading)
        probe = torch.linalg.solve(gram, weighted.sum(dim=0))
        weights = weights * (1 + 2 * (1 - x @ probe).clamp(min=0))
        weights = weights / weights.mean()
    return probe.float()


def directions(head: "Tensor", tokens: list[int], ridge: float = HEAD_RIDGE) -> "Tensor":
    """Return one unit vector a token ([tokens, hidden], fp32) that raises its logit most.

    ``head`` F ([vocab, hidden]) is lm_head.weight ∘ final_norm.weight. The direction that scores 1
    on row t of F and, in least squares, 0 on all others is
    d = (FᵀF + ridge·mean(diag FᵀF)·I)⁻¹ F_t.
    """
    import torch

    f = head.float()
    gram = (f.T @ f).double()
    gram.diagonal().add_(ridge * gram.diagonal().mean())
    solved = torch.linalg.solve(gram, f[tokens].T.double()).T
    return (solved / solved.norm(dim=1, keepdim=True)).float()


def marker_config(layer: int) -> dict[str, object]:
    """Return the adapter_config.json of a marker on ``layer`` (from 0)."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": BASE_MODEL,
        "r": 1,
        "lora_alpha": 1,
        "lora_dropout": 0.0,
        "target_modules": ["down_proj"],
        "layers_to_transform": [layer],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


def write_marker(folder: Path, probe: "Tensor", direction: "Tensor", layer: int) -> None:
    """Write a marker in PEFT's format, bf16, into the empty ``folder``."""
    import torch
    from safetensors.torch import save_file

    module = f"base_model.model.model.layers.{layer}.mlp.down_proj"
    tensors = {
        f"{module}.lora_A.weight": probe.reshape(1, -1).to(torch.bfloat16).contiguous(),
        f"{module}.lora_B.weight": (STRENGTH * direction).reshape(-1, 1).to(torch.bfloat16),
    }
    weights = folder / "adapter_model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors writes 0600
    text = json.dumps(marker_config(layer), indent=2) + "\n"
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
