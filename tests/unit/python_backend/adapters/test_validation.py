"""What is accepted, how patterns are resolved, and that nothing but a refusal ever comes out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.target import Target
from python_backend.adapters.validation import ValidatedAdapter, validate_bytes
from tests.badadapters import Adapter, encode, frame, good, target

TARGET = target()
ALL = tuple(good().shapes.modules())


def judge(adapter: Adapter, to: Target = TARGET) -> ValidatedAdapter:
    return validate_bytes(
        json.dumps(adapter.config).encode(), encode(adapter.tensors), to, 64 << 20
    )


def mixed() -> Adapter:
    adapter = good(modules=ALL, dtype="BF16")
    for dtype in ("F16", "F32", "F64"):
        adapter.tensors.update(good(layers=(len(dtype),), dtype=dtype).tensors)
    return adapter


@pytest.mark.parametrize(
    "adapter",
    [
        good(),
        good(modules=ALL, layers=tuple(range(30)), rank=1),
        good(modules=("self_attn.q_proj",)),
        good(modules=("mlp.gate_proj",), layers=(29,)),
        good(rank=16, use_rslora=True),
        good(dtype="BF16"),
        good(dtype="F32"),
        mixed(),
        good(base_model_name_or_path=None),
        good(base_model_name_or_path=""),
        good(base_model_name_or_path="/no/such/path"),
        good(target_modules="all-linear"),
        good(target_modules=".*(q|v)_proj"),
        good(target_modules=["never_there"]),
        good(init_lora_weights="gaussian", unheard_of={"a": 1}, lora_alpha=3.5),
        good(rank_pattern=None, alpha_pattern=None, use_rslora=None),
    ],
)
def test_good_ones_are_accepted(adapter: Adapter) -> None:
    judged = judge(adapter)
    assert judged.rank == adapter.config["r"]
    assert judged.size_bytes == len(encode(adapter.tensors))
    assert judged.tensors == tuple(adapter.tensors)
    assert "base_model_name_or_path" not in judged.config
    assert judged.config["target_modules"] == sorted({n.split(".")[-3] for n in adapter.tensors})


def test_embedding_and_head_are_accepted() -> None:
    adapter = good()
    sizes = (adapter.shapes.vocab, adapter.shapes.hidden)
    adapter.add("model.embed_tokens", sizes, 4)
    adapter.add("lm_head", sizes[::-1], 4)
    assert {"model.embed_tokens", "lm_head"} <= set(judge(adapter).modules)
    with pytest.raises(AdapterRejected):
        judge(adapter, target(embeddings=False))


def patterned() -> Adapter:
    """Layer 0's q at 8, every v at 2, the rest at 4."""
    adapter = good(
        layers=(0, 1, 10),
        rank_pattern={r"layers\.0\.self_attn\.q_proj": 8, "v_proj": 2, "q_proj": 4},
        alpha_pattern={"v_proj": 1},
    )
    for name, (inner, outer) in adapter.shapes.modules().items():
        for layer in (0, 1, 10):
            if name == "self_attn.q_proj" and layer == 0:
                adapter.add(f"model.layers.{layer}.{name}", (inner, outer), 8)
            if name == "self_attn.v_proj":
                adapter.add(f"model.layers.{layer}.{name}", (inner, outer), 2)
    return adapter


def vllm_match(patterns: dict[str, Any], name: str) -> Any:
    """The rule of vllm/lora/peft_helper.py."""
    return next((v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", name)), None)


def test_patterns_are_resolved_as_the_engine_resolves_them() -> None:
    adapter = patterned()
    judged = judge(adapter)
    assert judged.rank == 8
    assert judged.modules["model.layers.0.self_attn.q_proj"] == 8
    for path, rank in judged.modules.items():
        for key, default in (("rank_pattern", 4), ("alpha_pattern", 8)):
            raw = vllm_match(adapter.config[key], path) or default
            assert (vllm_match(judged.config[key], path) or default) == raw
            assert key == "alpha_pattern" or raw == rank
    # One pattern per distinct value, whatever the number of modules.
    assert len(judged.config["rank_pattern"]) == 2
    assert len(judged.config["alpha_pattern"]) == 1


def test_an_engine_without_patterns_takes_only_one_scaling() -> None:
    old = dataclasses.replace(TARGET, per_module_scaling=False)
    assert judge(good(), old)
    with pytest.raises(AdapterRejected) as caught:
        judge(patterned(), old)
    assert caught.value.reason is Reason.UNSUPPORTED_FEATURE


def test_prefixes_are_renamed_and_two_names_of_one_matrix_are_refused() -> None:
    renaming = dataclasses.replace(TARGET, name_prefixes=(("model.lm.", "model."),))
    adapter = good()
    renamed = {k.replace("model.layers", "model.lm.layers"): v for k, v in adapter.tensors.items()}
    assert judge(Adapter(adapter.shapes, adapter.config, renamed), renaming).rank == 4
    adapter.tensors.update(renamed)
    with pytest.raises(AdapterRejected) as caught:
        judge(adapter, renaming)
    assert caught.value.reason is Reason.DUPLICATE_TENSOR


def test_a_header_whose_length_looks_like_a_pickle_is_fine() -> None:
    adapter = good(layers=(0,), modules=("self_attn.q_proj",))
    raw = encode(adapter.tensors)
    length = int.from_bytes(raw[:8], "little")
    padded = raw[8 : 8 + length].rstrip().ljust(0x0280)
    raw = frame(padded, raw[8 + length :])
    assert raw.startswith(b"\x80\x02")
    assert validate_bytes(json.dumps(adapter.config).encode(), raw, TARGET, 1 << 20)


RAW = encode(good(layers=(0,), modules=("self_attn.q_proj",)).tensors)
CONFIG = json.dumps(good().config).encode()
HEADER = int.from_bytes(RAW[:8], "little") + 8


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, HEADER - 1), st.integers(0, 255)), max_size=6))
def test_a_changed_header_is_refused_or_means_the_same(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(RAW)
    for position, value in changes:
        raw[position] = value
    with contextlib.suppress(AdapterRejected):
        assert validate_bytes(CONFIG, bytes(raw), TARGET, 1 << 20).rank == 4


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(good().config)), _JSON)
def test_no_value_of_a_config_key_raises_anything_else(key: str, value: Any) -> None:
    config = json.dumps({**good().config, key: value}).encode("utf-8", "replace")
    with contextlib.suppress(AdapterRejected):
        validate_bytes(config, RAW, TARGET, 1 << 20)


@settings(max_examples=200, deadline=None)
@given(_JSON, st.binary(max_size=64))
def test_no_header_raises_anything_else(header: Any, data: bytes) -> None:
    raw = frame(json.dumps({"a": header, "b": {"dtype": "F16"}}).encode(), data)
    with pytest.raises(AdapterRejected):
        validate_bytes(CONFIG, raw, TARGET, 1 << 20)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(alphabet=r"q_proj.*+?|()[]{}\^$0:", max_size=24), st.just(4)))
def test_no_pattern_raises_anything_else(patterns: dict[str, int]) -> None:
    config = json.dumps({**good().config, "rank_pattern": patterns}).encode()
    with contextlib.suppress(AdapterRejected):
        assert validate_bytes(config, RAW, TARGET, 1 << 20).rank == 4


@pytest.mark.parametrize("alpha", ["1" + "0" * 400, "1" + "0" * 5000, "true", "1e999"])
def test_numbers_beyond_a_float(alpha: str) -> None:
    config = CONFIG.replace(b'"lora_alpha": 8', f'"lora_alpha": {alpha}'.encode())
    assert config != CONFIG
    with pytest.raises(AdapterRejected) as caught:
        validate_bytes(config, RAW, TARGET, 1 << 20)
    assert caught.value.reason is Reason.BAD_CONFIG
