"""Sets of weight files that are no whole adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.badadapters.files import WEIGHTS_FILE, Adapter, Shapes, encode, good
from tests.badadapters.registry import KINDS, A

INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
PARTS = tuple(f"adapter_model-0000{n}-of-00002.safetensors" for n in (1, 2))


def shard(adapter: Adapter, folder: Path) -> dict[str, Any]:
    """Writes ``adapter`` as two weight files with their index, which is returned too."""
    adapter.write(folder)
    (folder / WEIGHTS_FILE).unlink()
    names = list(adapter.tensors)
    weight_map: dict[str, str] = {}
    for part, held in zip(PARTS, (names[::2], names[1::2]), strict=True):
        (folder / part).write_bytes(encode({name: adapter.tensors[name] for name in held}))
        weight_map |= dict.fromkeys(held, part)
    total = sum(len(array.data) for array in adapter.tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return index


def _kind(kind: str, code: str, change: Callable[[Path, dict[str, Any]], object]) -> None:
    """Registers a set that ``change`` breaks; what it returns is the index that is written."""

    def write(folder: Path, shapes: Shapes) -> None:
        index = change(folder, shard(good(shapes), folder))
        if index is not None:
            text = index if isinstance(index, str) else json.dumps(index)
            (folder / INDEX_FILE).write_text(text)

    KINDS[kind] = (code, write)


def _elsewhere(name: str) -> Callable[[Path, dict[str, Any]], dict[str, Any]]:
    def change(folder: Path, index: dict[str, Any]) -> dict[str, Any]:
        outside = folder.parent / f".{folder.name}.safetensors"
        outside.write_bytes((folder / PARTS[0]).read_bytes())
        index["weight_map"] = {
            tensor: name.format(folder.name) if part == PARTS[0] else part
            for tensor, part in index["weight_map"].items()
        }
        return index

    return change


def _twice(folder: Path, index: dict[str, Any]) -> str:
    return json.dumps(index).replace('"weight_map": {', f'"weight_map": {{"{A}": "{PARTS[1]}", ')


def _in_both(folder: Path, index: dict[str, Any]) -> None:
    (folder / PARTS[1]).write_bytes((folder / PARTS[0]).read_bytes())


def _linked(folder: Path, index: dict[str, Any]) -> None:
    (folder / PARTS[0]).rename(folder / "real")
    (folder / PARTS[0]).symlink_to("real")


def _swapped(folder: Path, index: dict[str, Any]) -> None:
    (folder / PARTS[0]).rename(folder / "aside")
    (folder / PARTS[1]).rename(folder / PARTS[0])
    (folder / "aside").rename(folder / PARTS[1])


def _cut(folder: Path, index: dict[str, Any]) -> None:
    (folder / PARTS[1]).write_bytes((folder / PARTS[1]).read_bytes()[:-8])


def _unlisted(folder: Path, index: dict[str, Any]) -> dict[str, Any]:
    del index["weight_map"][A]
    return index


def _not_held(folder: Path, index: dict[str, Any]) -> dict[str, Any]:
    index["weight_map"][A.replace("layers.0", "layers.9")] = PARTS[0]
    return index


def _size(value: object) -> Callable[[Path, dict[str, Any]], dict[str, Any]]:
    return lambda _, index: {**index, "metadata": {"total_size": value}}


_kind("sharded_missing", "missing_weights", lambda folder, _: (folder / PARTS[1]).unlink())
_kind("sharded_outside", "bad_index", _elsewhere("../.{}.safetensors"))
_kind("sharded_absolute", "bad_index", _elsewhere("/srv/outside.safetensors"))
_kind("sharded_pickle", "bad_index", _elsewhere("adapter_model.dat"))
_kind("sharded_twice", "bad_index", _twice)
_kind("sharded_in_both", "duplicate_tensor", _in_both)
_kind("sharded_linked", "symlink", _linked)
_kind("sharded_swapped", "bad_index", _swapped)
_kind("sharded_cut", "truncated", _cut)
_kind("sharded_unlisted", "bad_index", _unlisted)
_kind("sharded_not_held", "bad_index", _not_held)
_kind("sharded_size_lie", "bad_index", _size(1))
_kind("sharded_size_text", "bad_index", _size("1000"))
_kind("sharded_empty", "bad_index", lambda *_: {})
_kind("sharded_not_json", "bad_index", lambda *_: "{")
_kind("sharded_huge", "too_large", lambda *_: " " * (5 << 20))
_kind(
    "sharded_and_whole",
    "bad_index",
    lambda folder, _: (folder / WEIGHTS_FILE).write_bytes(encode(good().tensors)) and None,
)
