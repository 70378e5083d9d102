"""The base model's own token embeddings, mapped from its safetensors file and never loaded whole.

The files are the operator's own, next to the engine's weights: they are read by their header, and
only the rows that a prompt needs are touched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from python_backend.adapters import weights

#: What the matrix is called, by the end of its name, in the families that vLLM serves.
_NAMES = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_DTYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
_MAX_HEADER_BYTES = 100 << 20
#: Rows that the digest covers, evenly over the matrix: all of a large one would take seconds.
_DIGEST_ROWS = 1024


class EmbeddingsError(Exception):
    """A model whose embeddings cannot be read; the text names the file and the cure."""


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """Rows of the matrix by token id. Thread-safe: it is only read.

    ``raw`` is the mapped matrix [vocabulary, hidden], bf16 as uint16; ``name`` the tensor's name.
    """

    name: str
    dtype: str
    raw: npt.NDArray[Any]
    digest: str

    @property
    def hidden(self) -> int:
        """Size of a row."""
        return int(self.raw.shape[1])

    def rows(self, token_ids: list[int]) -> npt.NDArray[np.float32]:
        """The embeddings [len(token_ids), hidden], fp32; ids beyond the matrix are left out."""
        ids = np.asarray(token_ids, np.int64)
        picked = self.raw[ids[(ids >= 0) & (ids < len(self.raw))]]
        if self.dtype == "BF16":
            picked = weights.widened(picked)
        found: npt.NDArray[np.float32] = picked.astype(np.float32, copy=False)
        return found


def open_model(folder: Path) -> Embeddings:
    """The embeddings of the model in ``folder``: one file, or several with an index.

    Raises:
        EmbeddingsError: there are none, or not as floating-point numbers of a known kind.
    """
    try:
        path, name = _locate(folder)
        begin, entry = _entry(path, name)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EmbeddingsError(
            f"{folder}: no token embeddings in safetensors files ({type(error).__name__}); "
            "give the folder of a model in Hugging Face's layout"
        ) from None
    dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
    if dtype not in _DTYPES or len(shape) != 2:
        raise EmbeddingsError(
            f"{path}: {name} is {dtype} {list(shape)}; only F32, F16 and BF16 matrices can be used"
        )
    offset = begin + int(entry["data_offsets"][0])
    try:
        raw = np.memmap(path, _DTYPES[dtype], "r", offset, shape)
    except (OSError, ValueError):
        raise EmbeddingsError(f"{path}: the file is cut off; copy it again") from None
    return Embeddings(name, dtype, raw, _digest(name, dtype, raw))


def _locate(folder: Path) -> tuple[Path, str]:
    """The file and the name of the one matrix of token embeddings."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        placed = {n: folder / f for n, f in json.loads(index.read_bytes())["weight_map"].items()}
    else:
        single = folder / "model.safetensors"
        placed = dict.fromkeys(_header(single)[1], single)
    found = sorted(name for name in placed if name.endswith(_NAMES))
    if not found:
        raise KeyError("embeddings")
    # A model with an encoder for images has others; the language model's name is the shortest.
    name = min(found, key=lambda name: (len(name), name))
    return placed[name], name


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the data begin, and the header of a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError("not a safetensors file")
        body = json.loads(file.read(length))
    if not isinstance(body, dict):
        raise ValueError("not a safetensors file")
    return 8 + length, body


def _entry(path: Path, name: str) -> tuple[int, dict[str, Any]]:
    begin, body = _header(path)
    entry = body[name]
    if not isinstance(entry, dict):
        raise ValueError("not a safetensors file")
    return begin, entry


def _digest(name: str, dtype: str, raw: npt.NDArray[Any]) -> str:
    """sha256 hex of name, dtype, shape and evenly spaced rows: tells models apart in milliseconds.

    It guards against a mistake, a gate of another model; who vouches for the gate is a matter of
    its signature.
    """
    found = hashlib.sha256(f"{name}\0{dtype}\0{raw.shape[0]}\0{raw.shape[1]}\0".encode())
    at = np.linspace(0, len(raw) - 1, min(len(raw), _DIGEST_ROWS)).astype(np.int64)
    found.update(np.ascontiguousarray(raw[at]).tobytes())
    return found.hexdigest()
