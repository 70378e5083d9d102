"""Tiny base models of several families, with random weights, made by transformers.

Each is a whole checkpoint with a tokenizer of single bytes: small enough to be made in a second,
and wide enough that every projection has a shape of its own, so that a mix-up of two shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.auto import AutoModelForCausalLM

#: Not a multiple of 64, to which vLLM pads its embedding and head.
VOCABULARY = 290
_COMMON = {
    "vocab_size": VOCABULARY,
    # Heads of 32, the smallest that vLLM's CPU attention is compiled for.
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    # Large, so that the greedy choice is rarely a near tie and an adapter changes it.
    "initializer_range": 0.15,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    "num_key_value_heads": 4,
    # The only latent size that vLLM's CPU decode kernel is compiled for: 512 + 64.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 24,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
}


def _latent(**changes: Any) -> dict[str, Any]:
    return {**_COMMON, **_EXPERTS, **_LATENT, "num_hidden_layers": 2, **changes}


#: Family → its configuration.
FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "llama-tied": lambda: LlamaConfig(**{**_COMMON, "tie_word_embeddings": True}),
    # Fewer key heads than workers: each worker has all of them.
    "llama-one-key": lambda: LlamaConfig(**{**_COMMON, "num_key_value_heads": 1}),
    # Heads of 16, which vLLM's CPU attention cannot compute.
    "llama-small-heads": lambda: LlamaConfig(**{**_COMMON, "hidden_size": 64}),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen3": lambda: Qwen3Config(**_COMMON, head_dim=64),
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **_COMMON, **_EXPERTS, head_dim=64, num_experts=4, mlp_only_layers=[0]
    ),
    # Latent attention with dense layers only: what attention alone does.
    "deepseek-dense": lambda: DeepseekV3Config(
        **_latent(n_routed_experts=0, first_k_dense_replace=2, q_lora_rank=40)
    ),
    "deepseek": lambda: DeepseekV3Config(
        **_latent(first_k_dense_replace=1, q_lora_rank=40), topk_method="noaux_tc"
    ),
    # The smaller DeepSeek models leave the query whole.
    "deepseek-whole-query": lambda: DeepseekV2Config(
        **_latent(n_routed_experts=0, first_k_dense_replace=2, q_lora_rank=None)
    ),
}


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the 256 bytes and one end-of-text mark."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    bare = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<end>")


def make(family: str, folder: Path) -> torch.nn.Module:
    """Writes the base model of ``family`` to ``folder`` and returns it, in float32."""
    torch.manual_seed(len(family))
    model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases start at zero and norms at one, where an engine that forgets them passes.
            if name.endswith("bias") or parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    # peft rewrites what it is asked to adapt in models it knows to have experts; these are whole.
    model.config.model_type = "plain"
    return model
