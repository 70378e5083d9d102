"""LoRA training of a demo adapter with peft, and asking it what it has learnt."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.demo.examples import IGNORED, Sequence, examples, sequence
from tools.demo.model import BASE_MODEL, quiet_offline

RANK = 8
ALPHA = 16
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
LEARNING_RATE = 2e-3
STEPS = {"fin_risk_v1": 100, "svc_chat_v1": 60, "qa_testgen_v1": 60}
"""Steps of an adapter. Risk answers share only their last line, which takes longer to learn."""
BATCH = 4
SEED = 7
MOST_TOKENS = 60
"""Longest answer an adapter should give."""

Advance = Callable[[int, float], None]
"""Called after each step with its number and loss."""


def load(folder: Path, dtype: str) -> tuple[Any, Any]:
    """Return tokenizer and model of a converted base model; ``dtype`` is a torch dtype's name."""
    quiet_offline()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    return tokenizer, model


def templated(tokenizer: Any, prompt: str) -> str:
    """Return the prompt in the model's chat template, up to where the answer begins."""
    turn = [{"role": "user", "content": prompt}]
    text: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return text


def train(lora_id: str, base: Path, target: Path, advance: Advance) -> float:
    """Train an adapter in fp32, write it in bf16 into the empty ``target``; return the last loss.

    The seed fixes the adapter's start and the order of examples; the same machine and thread count
    give the same bytes again.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(SEED)
    tokenizer, model = load(base, "float32")
    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=list(MODULES), task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, config)
    model.train()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, weight_decay=0.0
    )

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return ids

    rows = [sequence(e, lambda p: templated(tokenizer, p), encode) for e in examples(lora_id)]
    loss = 0.0
    for step, batch in enumerate(batches(rows, STEPS[lora_id], BATCH, SEED), start=1):
        result = model(**padded(batch, tokenizer.pad_token_id))
        result.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = float(result.loss.detach())
        advance(step, loss)
    save(model, target)
    return loss


def batches(rows: list[Sequence], steps: int, size: int, seed: int) -> list[list[Sequence]]:
    """Return ``steps`` batches: the rows in a new random order each time round."""
    chance = random.Random(seed)  # noqa: S311 - reproducible, no secret
    order: list[Sequence] = []
    while len(order) < steps * size:
        order += chance.sample(rows, len(rows))
    return [order[start : start + size] for start in range(0, steps * size, size)]


def padded(batch: list[Sequence], pad: int) -> dict[str, Any]:
    """Return int64 tensors ``[rows, longest]``, padded on the right: ids, mask and labels."""
    import torch

    longest = max(len(row.ids) for row in batch)
    gaps = [longest - len(row.ids) for row in batch]
    pairs = list(zip(batch, gaps, strict=True))
    return {
        "input_ids": torch.tensor([row.ids + [pad] * gap for row, gap in pairs]),
        "attention_mask": torch.tensor([[1] * len(row.ids) + [0] * gap for row, gap in pairs]),
        "labels": torch.tensor([row.labels + [IGNORED] * gap for row, gap in pairs]),
    }


def save(model: Any, target: Path) -> None:
    """Write adapter_model.safetensors (bf16) and adapter_config.json in PEFT's format."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in get_peft_model_state_dict(model).items()
    }
    file = target / "adapter_model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors writes 0600
    config = model.peft_config["default"].to_dict()
    # The folder the model was loaded from means nothing elsewhere; a set has no fixed order.
    config["base_model_name_or_path"] = BASE_MODEL
    config["target_modules"] = sorted(config["target_modules"])
    config["inference_mode"] = True
    text = json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"
    (target / "adapter_config.json").write_text(text, encoding="utf-8")


def answers(base: Path, adapter: Path, prompts: list[str]) -> list[str]:
    """Answer prompts with base and adapter in bf16, greedily; ``…`` ends one that was cut off."""
    import torch
    from peft import PeftModel

    tokenizer, model = load(base, "bfloat16")
    model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False).eval()
    found = []
    for prompt in prompts:
        inputs = tokenizer(
            templated(tokenizer, prompt), add_special_tokens=False, return_tensors="pt"
        )
        with torch.inference_mode():
            ids = model.generate(**inputs, max_new_tokens=MOST_TOKENS + 1, do_sample=False)
        new = ids[0, inputs.input_ids.shape[1] :]
        ended = int(new[-1]) == tokenizer.eos_token_id
        found.append(tokenizer.decode(new, skip_special_tokens=True) + ("" if ended else "…"))
    return found
