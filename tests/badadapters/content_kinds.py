"""Lying configurations, and tensors that fit nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.badadapters.files import (
    CONFIG_FILE,
    Adapter,
    Array,
    Shapes,
    good,
)
from tests.badadapters.registry import Q0, A, B, adapter_kind, config_kind, file_kind

# --- configuration -------------------------------------------------------------------------------
for _name, _rank in {
    "missing": ..., "null": None, "zero": 0, "negative": -8, "float": 8.0, "text": "8",
    "bool": True,
}.items():  # fmt: skip
    config_kind(f"r_{_name}", "bad_config", r=_rank)
for _name, _alpha in {
    "missing": ..., "text": "16", "bool": True, "zero": 0, "negative": -16, "huge": 1e38,
    "tiny": 1e-30, "list": [16],
}.items():  # fmt: skip
    config_kind(f"alpha_{_name}", "bad_config", lora_alpha=_alpha)
config_kind("rank_65", "rank_too_large", r=65)
config_kind("rank_pattern_too_large", "rank_too_large", rank_pattern={"k_proj": 1024})
config_kind("rank_pattern_zero", "bad_config", rank_pattern={"q_proj": 0})
config_kind("rank_pattern_text", "bad_config", rank_pattern={"q_proj": "8"})
config_kind("rank_pattern_list", "bad_config", rank_pattern=["q_proj"])
config_kind("rank_pattern_bad_expression", "bad_config", rank_pattern={"q_proj(": 4})
config_kind("rank_pattern_slow", "bad_config", rank_pattern={r"(([a-z]|.)+)+[!?]": 4})
config_kind("alpha_pattern_negative", "bad_config", alpha_pattern={"q_proj": -1})
config_kind("alpha_pattern_huge", "bad_config", alpha_pattern={"q_proj": 1e30})
config_kind("target_modules_number", "bad_config", target_modules=7)
config_kind("rslora_text", "bad_config", use_rslora="yes")
config_kind("init_number", "bad_config", init_lora_weights=3)
config_kind("peft_type_missing", "bad_config", peft_type=...)
config_kind("peft_type_ia3", "unsupported_feature", peft_type="IA3")
config_kind("dora", "unsupported_feature", use_dora=True)
config_kind("qalora", "unsupported_feature", use_qalora=True)
config_kind("bdlora", "unsupported_feature", use_bdlora={"nblocks": 2})
config_kind("unknown_switch", "unsupported_feature", use_something_new=True)
config_kind("lora_bias", "unsupported_feature", lora_bias=True)
config_kind("bias_all", "unsupported_feature", bias="all")
config_kind("modules_to_save", "unsupported_feature", modules_to_save=["lm_head"])
config_kind("trainable_tokens", "unsupported_feature", trainable_token_indices=[1, 2])
config_kind("target_parameters", "unsupported_feature", target_parameters=["mlp.experts"])
config_kind("layer_replication", "unsupported_feature", layer_replication=[[0, 2], [1, 3]])
config_kind("alora", "unsupported_feature", alora_invocation_tokens=[1])
config_kind("fan_in_fan_out", "unsupported_feature", fan_in_fan_out=True)
for _init in ("pissa", "pissa_niter_16", "olora", "loftq", "corda"):
    config_kind(f"init_{_init}", "unsupported_feature", init_lora_weights=_init)
file_kind("config_missing", "missing_config", CONFIG_FILE, lambda _: None)
file_kind("config_empty", "empty_file", CONFIG_FILE, lambda _: b"")
file_kind("config_not_json", "bad_config", CONFIG_FILE, lambda raw: raw[:-5])
file_kind("config_not_utf8", "bad_config", CONFIG_FILE, lambda raw: raw.replace(b"LORA", b"\xff"))
file_kind("config_list", "bad_config", CONFIG_FILE, lambda raw: b"[" + raw + b"]")
file_kind("config_nan", "bad_config", CONFIG_FILE, lambda raw: raw.replace(b"0.0", b"NaN"))
file_kind("config_twice", "bad_config", CONFIG_FILE, lambda raw: raw[:-1] + b', "r": 8}')
file_kind("config_deep", "bad_config", CONFIG_FILE, lambda _: b'{"r":' * 150_000)
file_kind("config_huge", "too_large", CONFIG_FILE, lambda raw: raw + b" " * (1 << 20))


# --- tensors -------------------------------------------------------------------------------------
def _shape(name: str, *resize: Callable[[int], int]) -> Callable[[Adapter], None]:
    def change(adapter: Adapter) -> None:
        old = adapter.tensors[name].shape
        shape = tuple(f(size) for f, size in zip(resize, old, strict=False))
        adapter.tensors[name] = Array.noise(shape)

    return change


def _same(size: int) -> int:
    return size


def _rename(old: str, new: str) -> Callable[[Adapter], None]:
    def change(adapter: Adapter) -> None:
        adapter.tensors = {k.replace(old, new): v for k, v in adapter.tensors.items()}

    return change


def _value(name: str, value: float, dtype: str = "F32") -> Callable[[Adapter], None]:
    def change(adapter: Adapter) -> None:
        values = np.full(adapter.tensors[name].shape, 0.01)
        values.flat[-1] = value
        adapter.tensors[name] = Array.of(values, dtype)

    return change


def _extra(name: str, *shape: int) -> Callable[[Adapter], None]:
    return lambda adapter: adapter.tensors.update({name: Array.noise(shape)})


adapter_kind("in_larger", "wrong_shape", _shape(A, _same, lambda n: n + 64))
adapter_kind("in_smaller", "wrong_shape", _shape(A, _same, lambda n: n // 2))
adapter_kind("out_larger", "wrong_shape", _shape(B, lambda n: n + 64, _same))
adapter_kind("out_smaller", "wrong_shape", _shape(B, lambda n: n // 2, _same))
adapter_kind("one_dimension", "wrong_shape", _shape(A, _same))
adapter_kind("tensor_rank_larger", "rank_mismatch", _shape(A, lambda n: 2 * n, _same))
adapter_kind("tensor_rank_zero", "rank_mismatch", _shape(B, _same, lambda n: 0))
config_kind("rank_lie_smaller", "rank_mismatch", r=2)
config_kind("rank_pattern_lie", "rank_mismatch", rank_pattern={"v_proj": 8})
adapter_kind(
    "other_prefix", "unknown_module", _rename("model.model.layers", "model.lm.model.layers")
)
adapter_kind("doubled_prefix", "unknown_module", _rename("model.model.", "model.model.model."))
adapter_kind("half_prefix", "unknown_module", _rename("base_model.model.", "base_model."))
adapter_kind("extra_layer", "unknown_module", _rename("layers.1.", "layers.977."))
adapter_kind("unknown_suffix", "unknown_module", _rename("v_proj", "foo_proj"))
adapter_kind("only_a", "half_pair", lambda adapter: adapter.tensors.pop(B))
adapter_kind("only_b", "half_pair", lambda adapter: adapter.tensors.pop(A))
adapter_kind("no_tensors", "no_tensors", lambda adapter: adapter.tensors.clear())
adapter_kind("full_head", "foreign_tensor", _extra("base_model.model.lm_head.weight", 8, 8))
adapter_kind(
    "full_base_layer",
    "foreign_tensor",
    _extra("base_model.model.model.embed_tokens.base_layer.weight", 8, 8),
)
adapter_kind("magnitude", "foreign_tensor", _extra(f"{Q0}.lora_magnitude_vector", 8))
adapter_kind("bias_tensor", "foreign_tensor", _extra(f"{Q0}.lora_B.bias", 8))
adapter_kind(
    "int8", "wrong_dtype", lambda a: a.tensors.update({A: Array.of(np.ones((4, 8)), "I8")})
)
for _dtype in ("F16", "BF16", "F32", "F64"):
    for _name, _number in {"nan": math.nan, "inf": math.inf, "minus_inf": -math.inf}.items():
        adapter_kind(f"{_name}_{_dtype.lower()}", "non_finite", _value(B, _number, _dtype))
adapter_kind("overflow_f32", "out_of_range", _value(A, 7e4))
adapter_kind("overflow_bf16", "out_of_range", _value(A, -1e30, "BF16"))
adapter_kind("overflow_scaled", "out_of_range", _value(B, 6e4))
adapter_kind(
    "other_model", "wrong_shape", lambda a: setattr(a, "tensors", _other(a.shapes).tensors)
)


def _other(shapes: Shapes) -> Adapter:
    return good(Shapes(shapes.layers, shapes.hidden * 2, shapes.kv * 2))


def _vocabulary(path: str) -> Callable[[Adapter], None]:
    def change(adapter: Adapter) -> None:
        sizes = (adapter.shapes.vocab + 64, adapter.shapes.hidden)
        adapter.add(path, sizes if path.endswith("embed_tokens") else sizes[::-1], 4)

    return change


adapter_kind("extra_vocabulary", "wrong_shape", _vocabulary("model.embed_tokens"))
adapter_kind("extra_head_rows", "wrong_shape", _vocabulary("lm_head"))
