"""Damaged files, pickles, and folders that are none."""

from __future__ import annotations

import json
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.badadapters.files import (
    WEIGHTS_FILE,
    Shapes,
    encode,
    frame,
    good,
)
from tests.badadapters.registry import KINDS, A, B, file_kind


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
    header[B]["data_offsets"] = [0, math.prod(header[B]["shape"]) * 2]


def _gap(header: dict[str, Any]) -> None:
    for entry in list(header.values())[1:]:
        entry["data_offsets"] = [offset + 8 for offset in entry["data_offsets"]]


def _claim(length: int) -> Callable[[bytes], bytes]:
    return lambda raw: length.to_bytes(8, "little") + raw[8:]


def _entry(**changes: Any) -> Callable[[bytes], bytes]:
    return _header(lambda header: header[A].update(changes))


file_kind("weights_missing", "missing_weights", WEIGHTS_FILE, lambda _: None)
file_kind("weights_empty", "empty_file", WEIGHTS_FILE, lambda _: b"")
file_kind("weights_5_bytes", "truncated", WEIGHTS_FILE, lambda raw: raw[:5])
file_kind("weights_60_percent", "truncated", WEIGHTS_FILE, lambda raw: raw[: len(raw) * 6 // 10])
file_kind("weights_cut_header", "truncated", WEIGHTS_FILE, lambda raw: raw[:100])
file_kind("weights_trailing", "bad_header", WEIGHTS_FILE, lambda raw: raw + b"\0" * 16)
file_kind("weights_garbage", "header_too_large", WEIGHTS_FILE, lambda raw: b"\xa5" * len(raw))
file_kind(
    "weights_lfs", "bad_header", WEIGHTS_FILE, lambda _: b"version https://git-lfs.github.com/"
)
file_kind("header_2_60", "header_too_large", WEIGHTS_FILE, _claim(1 << 60))
file_kind(
    "header_17_mib", "header_too_large", WEIGHTS_FILE, lambda _: frame(b"{" + b" " * (17 << 20))
)
file_kind("header_zero", "bad_header", WEIGHTS_FILE, _claim(0))
file_kind("header_not_json", "bad_header", WEIGHTS_FILE, lambda _: frame(b"{nothing}"))
file_kind("header_list", "bad_header", WEIGHTS_FILE, lambda _: frame(b"[]"))
file_kind("header_deep", "bad_header", WEIGHTS_FILE, lambda _: frame(b'{"a":' * 200_000))
file_kind("header_twice", "bad_header", WEIGHTS_FILE, _twice)
file_kind("header_overlap", "bad_header", WEIGHTS_FILE, _header(_overlap))
file_kind("header_gap", "bad_header", WEIGHTS_FILE, _header(_gap))
file_kind("header_unknown_dtype", "bad_header", WEIGHTS_FILE, _entry(dtype="F99"))
file_kind("header_negative_shape", "bad_header", WEIGHTS_FILE, _entry(shape=[-4, -576]))
file_kind("header_bool_shape", "bad_header", WEIGHTS_FILE, _entry(shape=[True, 576]))
file_kind("header_huge_shape", "bad_header", WEIGHTS_FILE, _entry(shape=[10**300, 2]))
file_kind("header_many_dimensions", "bad_header", WEIGHTS_FILE, _entry(shape=[1] * 1000))
file_kind("header_offsets_text", "bad_header", WEIGHTS_FILE, _entry(data_offsets=["0", "8"]))
file_kind("header_extra_key", "bad_header", WEIGHTS_FILE, _entry(strides=[1, 1]))
file_kind(
    "header_metadata", "bad_header", WEIGHTS_FILE, _header(lambda h: h.update(__metadata__=[1]))
)


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
