"""Every kind of bad adapter, with the reason code that it must be refused with.

From the kinds of bad input found in the field: lying configurations, tensors that fit nothing,
damaged files, pickles, folders that are none.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.badadapters.files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Adapter,
    Array,
    Shapes,
    encode,
    frame,
    good,
)

Writer = Callable[[Path, Shapes], object]

#: kind → (expected reason code, writer).
KINDS: dict[str, tuple[str, Writer]] = {}

_Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
_A, _B = f"{_Q0}.lora_A.weight", f"{_Q0}.lora_B.weight"


def _config(kind: str, code: str, **changes: Any) -> None:
    """Registers a kind whose configuration is wrong; ``...`` leaves a key out."""

    def write(folder: Path, shapes: Shapes) -> None:
        adapter = good(shapes)
        adapter.config.update(changes)
        adapter.config = {k: v for k, v in adapter.config.items() if v is not ...}
        adapter.write(folder)

    KINDS[kind] = (code, write)


def _adapter(kind: str, code: str, change: Callable[[Adapter], object]) -> None:
    """Registers a kind that differs from a good adapter by ``change``."""

    def write(folder: Path, shapes: Shapes) -> None:
        adapter = good(shapes)
        change(adapter)
        adapter.write(folder)

    KINDS[kind] = (code, write)


def _file(kind: str, code: str, name: str, change: Callable[[bytes], bytes | None]) -> None:
    """Registers a kind one of whose files is damaged; None removes it."""

    def write(folder: Path, shapes: Shapes) -> None:
        good(shapes).write(folder)
        changed = change((folder / name).read_bytes())
        if changed is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(changed)

    KINDS[kind] = (code, write)


def make(kind: str, folder: Path, shapes: Shapes) -> str:
    """Writes the bad adapter ``kind`` to ``folder``; the reason code it must be refused with."""
    code, write = KINDS[kind]
    write(folder, shapes)
    return code


# --- configuration -------------------------------------------------------------------------------
for _name, _rank in {
    "missing": ..., "null": None, "zero": 0, "negative": -8, "float": 8.0, "text": "8",
    "bool": True,
}.items():  # fmt: skip
    _config(f"r_{_name}", "bad_config", r=_rank)
for _name, _alpha in {
    "missing": ..., "text": "16", "bool": True, "zero": 0, "negative": -16, "huge": 1e38,
    "tiny": 1e-30, "list": [16],
}.items():  # fmt: skip
    _config(f"alpha_{_name}", "bad_config", lora_alpha=_alpha)
_config("rank_65", "rank_too_large", r=65)
_config("rank_pattern_too_large", "rank_too_large", rank_pattern={"k_proj": 1024})
_config("rank_pattern_zero", "bad_config", rank_pattern={"q_proj": 0})
_config("rank_pattern_text", "bad_config", rank_pattern={"q_proj": "8"})
_config("rank_pattern_list", "bad_config", rank_pattern=["q_proj"])
_config("rank_pattern_bad_expression", "bad_config", rank_pattern={"q_proj(": 4})
_config("rank_pattern_slow", "bad_config", rank_pattern={r"(([a-z]|.)+)+[!?]": 4})
_config("alpha_pattern_negative", "bad_config", alpha_pattern={"q_proj": -1})
_config("alpha_pattern_huge", "bad_config", alpha_pattern={"q_proj": 1e30})
_config("target_modules_number", "bad_config", target_modules=7)
_config("rslora_text", "bad_config", use_rslora="yes")
_config("init_number", "bad_config", init_lora_weights=3)
_config("peft_type_missing", "bad_config", peft_type=...)
_config("peft_type_ia3", "unsupported_feature", peft_type="IA3")
_config("dora", "unsupported_feature", use_dora=True)
_config("qalora", "unsupported_feature", use_qalora=True)
_config("bdlora", "unsupported_feature", use_bdlora={"nblocks": 2})
_config("unknown_switch", "unsupported_feature", use_something_new=True)
_config("lora_bias", "unsupported_feature", lora_bias=True)
_config("bias_all", "unsupported_feature", bias="all")
_config("modules_to_save", "unsupported_feature", modules_to_save=["lm_head"])
_config("trainable_tokens", "unsupported_feature", trainable_token_indices=[1, 2])
_config("target_parameters", "unsupported_feature", target_parameters=["mlp.experts"])
_config("layer_replication", "unsupported_feature", layer_replication=[[0, 2], [1, 3]])
_config("alora", "unsupported_feature", alora_invocation_tokens=[1])
_config("fan_in_fan_out", "unsupported_feature", fan_in_fan_out=True)
for _init in ("pissa", "pissa_niter_16", "olora", "loftq", "corda"):
    _config(f"init_{_init}", "unsupported_feature", init_lora_weights=_init)
_file("config_missing", "missing_config", CONFIG_FILE, lambda _: None)
_file("config_empty", "empty_file", CONFIG_FILE, lambda _: b"")
_file("config_not_json", "bad_config", CONFIG_FILE, lambda raw: raw[:-5])
_file("config_not_utf8", "bad_config", CONFIG_FILE, lambda raw: raw.replace(b"LORA", b"\xff"))
_file("config_list", "bad_config", CONFIG_FILE, lambda raw: b"[" + raw + b"]")
_file("config_nan", "bad_config", CONFIG_FILE, lambda raw: raw.replace(b"0.0", b"NaN"))
_file("config_twice", "bad_config", CONFIG_FILE, lambda raw: raw[:-1] + b', "r": 8}')
_file("config_deep", "bad_config", CONFIG_FILE, lambda _: b'{"r":' * 150_000)
_file("config_huge", "too_large", CONFIG_FILE, lambda raw: raw + b" " * (1 << 20))


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


_adapter("in_larger", "wrong_shape", _shape(_A, _same, lambda n: n + 64))
_adapter("in_smaller", "wrong_shape", _shape(_A, _same, lambda n: n // 2))
_adapter("out_larger", "wrong_shape", _shape(_B, lambda n: n + 64, _same))
_adapter("out_smaller", "wrong_shape", _shape(_B, lambda n: n // 2, _same))
_adapter("one_dimension", "wrong_shape", _shape(_A, _same))
_adapter("tensor_rank_larger", "rank_mismatch", _shape(_A, lambda n: 2 * n, _same))
_adapter("tensor_rank_zero", "rank_mismatch", _shape(_B, _same, lambda n: 0))
_config("rank_lie_smaller", "rank_mismatch", r=2)
_config("rank_pattern_lie", "rank_mismatch", rank_pattern={"v_proj": 8})
_adapter("other_prefix", "unknown_module", _rename("model.model.layers", "model.lm.model.layers"))
_adapter("doubled_prefix", "unknown_module", _rename("model.model.", "model.model.model."))
_adapter("no_prefix", "unknown_module", _rename("base_model.model.", ""))
_adapter("extra_layer", "unknown_module", _rename("layers.1.", "layers.977."))
_adapter("unknown_suffix", "unknown_module", _rename("v_proj", "foo_proj"))
_adapter("only_a", "half_pair", lambda adapter: adapter.tensors.pop(_B))
_adapter("only_b", "half_pair", lambda adapter: adapter.tensors.pop(_A))
_adapter("no_tensors", "no_tensors", lambda adapter: adapter.tensors.clear())
_adapter("full_head", "foreign_tensor", _extra("base_model.model.lm_head.weight", 8, 8))
_adapter(
    "full_base_layer",
    "foreign_tensor",
    _extra("base_model.model.model.embed_tokens.base_layer.weight", 8, 8),
)
_adapter("magnitude", "foreign_tensor", _extra(f"{_Q0}.lora_magnitude_vector", 8))
_adapter("bias_tensor", "foreign_tensor", _extra(f"{_Q0}.lora_B.bias", 8))
_adapter("int8", "wrong_dtype", lambda a: a.tensors.update({_A: Array.of(np.ones((4, 8)), "I8")}))
for _dtype in ("F16", "BF16", "F32", "F64"):
    for _name, _number in {"nan": math.nan, "inf": math.inf, "minus_inf": -math.inf}.items():
        _adapter(f"{_name}_{_dtype.lower()}", "non_finite", _value(_B, _number, _dtype))
_adapter("overflow_f32", "out_of_range", _value(_A, 7e4))
_adapter("overflow_bf16", "out_of_range", _value(_A, -1e30, "BF16"))
_adapter("overflow_scaled", "out_of_range", _value(_B, 6e4))
_adapter("other_model", "wrong_shape", lambda a: setattr(a, "tensors", _other(a.shapes).tensors))


def _other(shapes: Shapes) -> Adapter:
    return good(Shapes(shapes.layers, shapes.hidden * 2, shapes.kv * 2))


def _vocabulary(path: str) -> Callable[[Adapter], None]:
    def change(adapter: Adapter) -> None:
        sizes = (adapter.shapes.vocab + 64, adapter.shapes.hidden)
        adapter.add(path, sizes if path.endswith("embed_tokens") else sizes[::-1], 4)

    return change


_adapter("extra_vocabulary", "wrong_shape", _vocabulary("model.embed_tokens"))
_adapter("extra_head_rows", "wrong_shape", _vocabulary("lm_head"))


# --- files ---------------------------------------------------------------------------------------
def _header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Changes the header, leaving the data as it is."""

    def apply(raw: bytes) -> bytes:
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        change(header)
        return frame(json.dumps(header).encode(), raw[8 + length :])

    return apply


def _twice(raw: bytes) -> bytes:
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip()
    return frame(header[:-1] + b', "__metadata__": {}}', raw[8 + length :])


def _overlap(header: dict[str, Any]) -> None:
    header[_B]["data_offsets"] = [0, math.prod(header[_B]["shape"]) * 2]


def _gap(header: dict[str, Any]) -> None:
    for entry in list(header.values())[1:]:
        entry["data_offsets"] = [offset + 8 for offset in entry["data_offsets"]]


def _claim(length: int) -> Callable[[bytes], bytes]:
    return lambda raw: length.to_bytes(8, "little") + raw[8:]


def _entry(**changes: Any) -> Callable[[bytes], bytes]:
    return _header(lambda header: header[_A].update(changes))


_file("weights_missing", "missing_weights", WEIGHTS_FILE, lambda _: None)
_file("weights_empty", "empty_file", WEIGHTS_FILE, lambda _: b"")
_file("weights_5_bytes", "truncated", WEIGHTS_FILE, lambda raw: raw[:5])
_file("weights_60_percent", "truncated", WEIGHTS_FILE, lambda raw: raw[: len(raw) * 6 // 10])
_file("weights_cut_header", "truncated", WEIGHTS_FILE, lambda raw: raw[:100])
_file("weights_trailing", "bad_header", WEIGHTS_FILE, lambda raw: raw + b"\0" * 16)
_file("weights_garbage", "header_too_large", WEIGHTS_FILE, lambda raw: b"\xa5" * len(raw))
_file("weights_lfs", "bad_header", WEIGHTS_FILE, lambda _: b"version https://git-lfs.github.com/")
_file("header_2_60", "header_too_large", WEIGHTS_FILE, _claim(1 << 60))
_file("header_17_mib", "header_too_large", WEIGHTS_FILE, lambda _: frame(b"{" + b" " * (17 << 20)))
_file("header_zero", "bad_header", WEIGHTS_FILE, _claim(0))
_file("header_not_json", "bad_header", WEIGHTS_FILE, lambda _: frame(b"{nothing}"))
_file("header_list", "bad_header", WEIGHTS_FILE, lambda _: frame(b"[]"))
_file("header_deep", "bad_header", WEIGHTS_FILE, lambda _: frame(b'{"a":' * 200_000))
_file("header_twice", "bad_header", WEIGHTS_FILE, _twice)
_file("header_overlap", "bad_header", WEIGHTS_FILE, _header(_overlap))
_file("header_gap", "bad_header", WEIGHTS_FILE, _header(_gap))
_file("header_unknown_dtype", "bad_header", WEIGHTS_FILE, _entry(dtype="F99"))
_file("header_negative_shape", "bad_header", WEIGHTS_FILE, _entry(shape=[-4, -576]))
_file("header_bool_shape", "bad_header", WEIGHTS_FILE, _entry(shape=[True, 576]))
_file("header_huge_shape", "bad_header", WEIGHTS_FILE, _entry(shape=[10**300, 2]))
_file("header_many_dimensions", "bad_header", WEIGHTS_FILE, _entry(shape=[1] * 1000))
_file("header_offsets_text", "bad_header", WEIGHTS_FILE, _entry(data_offsets=["0", "8"]))
_file("header_extra_key", "bad_header", WEIGHTS_FILE, _entry(strides=[1, 1]))
_file("header_metadata", "bad_header", WEIGHTS_FILE, _header(lambda h: h.update(__metadata__=[1])))


# --- pickles and folders -------------------------------------------------------------------------
class _Bomb:
    """Unpickling this makes a folder named by ``BOMB``: the proof that nothing did."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (BOMB,)


#: Relative, so that it lies in the folder of whoever opened the pickle.
BOMB = "a-pickle-was-opened"


def _zipped(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_Bomb()))


def _pickled(file: Path) -> None:
    file.write_bytes(pickle.dumps(_Bomb(), protocol=2))


def _other_file(
    kind: str, code: str, name: str, write_file: Callable[[Path], object], *, keep: bool = False
) -> None:
    """Registers a kind with one more file; the weights stay only with ``keep``."""

    def write(folder: Path, shapes: Shapes) -> None:
        good(shapes).write(folder)
        if not keep:
            (folder / WEIGHTS_FILE).unlink()
        write_file(folder / name)

    KINDS[kind] = (code, write)


for _suffix in ("bin", "pt", "pth", "ckpt"):
    _other_file(f"pickle_{_suffix}", "pickle", f"adapter_model.{_suffix}", _zipped)
_other_file("pickle_beside", "pickle", "adapter_model.bin", _zipped, keep=True)
_other_file("pickle_upper_case", "pickle", "training_args.BIN", _pickled, keep=True)
_other_file("pickle_zip_renamed", "pickle", WEIGHTS_FILE, _zipped)
_other_file("pickle_renamed", "pickle", WEIGHTS_FILE, _pickled)
_other_file(
    "sharded",
    "unsupported_feature",
    f"{WEIGHTS_FILE}.index.json",
    lambda file: file.write_text("{}"),
)
_other_file("weights_folder", "unreadable", WEIGHTS_FILE, Path.mkdir)
_other_file("weights_pipe", "unreadable", WEIGHTS_FILE, os.mkfifo)


def _linked_weights(folder: Path, shapes: Shapes) -> None:
    good(shapes).write(folder)
    elsewhere = folder.parent / f".{folder.name}.elsewhere"
    (folder / WEIGHTS_FILE).rename(elsewhere)
    (folder / WEIGHTS_FILE).symlink_to(elsewhere)


def _linked_folder(folder: Path, shapes: Shapes) -> None:
    elsewhere = folder.parent / f".{folder.name}.elsewhere"
    good(shapes).write(elsewhere)
    folder.symlink_to(elsewhere)


KINDS["linked_weights"] = ("symlink", _linked_weights)
KINDS["linked_folder"] = ("symlink", _linked_folder)
KINDS["empty_folder"] = ("missing_config", lambda folder, _: folder.mkdir(parents=True))
KINDS["no_folder"] = ("not_a_folder", lambda folder, _: None)
KINDS["file_for_folder"] = (
    "not_a_folder",
    lambda folder, shapes: folder.write_bytes(encode(good(shapes).tensors)),
)
