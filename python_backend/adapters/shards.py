"""Adapters whose weights lie in several safetensors files, read as the one file they stand for.

``adapter_model.safetensors.index.json`` maps every tensor to its file. The engine reads one file
only, so the parts are joined: one header of ours, then the data of each part as it is. The joined
bytes are a function of the parts alone, so they are what the version digest is taken of.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NoReturn

from python_backend import strict_json
from python_backend.adapters import weights
from python_backend.adapters.rejection import AdapterRejected, Reason, shown
from python_backend.adapters.weights import WEIGHTS_FILE, Tensor

INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
#: A tensor's line has about 100 bytes; an adapter has some thousands.
MAX_INDEX_BYTES = 4 << 20
MAX_SHARDS = 256
_BLOCK_BYTES = 1 << 20


def _bad(problem: str) -> NoReturn:
    raise AdapterRejected(Reason.BAD_INDEX, f"{INDEX_FILE}: {problem}; save the adapter again.")


def parse_index(raw: bytes) -> dict[str, str]:
    """Tensor name to the plain name of its file.

    Raises:
        AdapterRejected: ``bad_index``: not JSON, a tensor given twice, no or too many files, or a
            file that is not a safetensors file of this folder.
    """
    if len(raw) > MAX_INDEX_BYTES:
        _bad(f"above {MAX_INDEX_BYTES} bytes")
    try:
        body = strict_json.loads_object(raw)
    except strict_json.StrictJsonError as error:
        _bad(f"cannot be read: {error}")
    found = body.get("weight_map")
    if not isinstance(found, dict) or not found:
        _bad("weight_map must map each tensor to its file")
    for file in found.values():
        plain = isinstance(file, str) and PurePosixPath(file).name == file
        if not plain or not file.endswith(".safetensors") or "\0" in file or not file.isascii():
            _bad(f"{shown(file)} is not the name of a safetensors file in the adapter's folder")
    if len(set(found.values())) > MAX_SHARDS:
        _bad(f"more than {MAX_SHARDS} files")
    total = _metadata(body).get("total_size")
    if total is not None and (isinstance(total, bool) or not isinstance(total, int)):
        _bad("metadata.total_size is not a number of bytes")
    return found


def _metadata(body: dict[str, Any]) -> dict[str, Any]:
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        _bad("metadata is not an object")
    return metadata


class _File:
    """What ``weights.read_header`` needs of a file: its bytes from the start, all kept."""

    def __init__(self, file_fd: int, read: Callable[[int, int, int], bytes]) -> None:
        self._fd, self._read, self.header = file_fd, read, b""

    def read(self, count: int) -> bytes:
        begin = len(self.header)
        while count > 0 and (block := self._read(self._fd, len(self.header), count)):
            self.header += block
            count -= len(block)
        return self.header[begin:]


class Joined:
    """The parts of one adapter, joined.

    Args:
        index: the index file's bytes.
        parts: open descriptors by file name, as ``parse_index`` named them.
        read: bytes of a descriptor at a position: (descriptor, position, count), at least one
            while there are any.

    Raises:
        AdapterRejected: the parts are not what the index says (``bad_index``,
            ``duplicate_tensor``), or one of them cannot be served (see ``weights.read_header``).
    """

    def __init__(
        self, index: bytes, parts: Mapping[str, int], read: Callable[[int, int, int], bytes]
    ) -> None:
        self._index, self._parts, self._read = index, dict(sorted(parts.items())), read
        #: (size, sha256 hex) of the index and of each part, as ``digest`` last read them.
        self.files: dict[str, tuple[int, str]] = {}
        self._headers: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        tensors: dict[str, list[Tensor]] = {}
        for name, file_fd in self._parts.items():
            tensors[name] = self._tensors(name, file_fd)
        self._check(tensors)
        self._header = self._joined(tensors)

    @property
    def size_bytes(self) -> int:
        """Size of the joined file."""
        return len(self._header) + sum(self._sizes.values())

    def _tensors(self, name: str, file_fd: int) -> list[Tensor]:
        file = _File(file_fd, self._read)
        size_bytes = os.fstat(file_fd).st_size
        try:
            tensors = weights.read_header(file, size_bytes)  # type: ignore[arg-type]
        except AdapterRejected as error:
            sentence = error.sentence.removeprefix(WEIGHTS_FILE)
            raise AdapterRejected(Reason(error.reason), f"{shown(name)[1:-1]}{sentence}") from None
        self._headers[name] = file.header
        self._sizes[name] = size_bytes - len(file.header)
        return tensors

    def _check(self, tensors: Mapping[str, list[Tensor]]) -> None:
        """The index names each tensor of each part, once, and nothing else."""
        body = strict_json.loads_object(self._index)
        left = dict(body["weight_map"])
        seen: set[str] = set()
        for name, held in tensors.items():
            for tensor in held:
                if tensor.name in seen:
                    raise AdapterRejected(
                        Reason.DUPLICATE_TENSOR,
                        f"{shown(name)[1:-1]}: tensor {shown(tensor.name)} is in another file too; "
                        "save the adapter again.",
                    )
                seen.add(tensor.name)
                if left.pop(tensor.name, None) != name:
                    _bad(f"tensor {shown(tensor.name)} is in {shown(name)}, which it does not say")
        if left:
            _bad(f"tensor {shown(next(iter(left)))} is not in the file that it names")
        total = _metadata(body).get("total_size")
        if total is not None and total != sum(self._sizes.values()):
            _bad(f"total_size is {total}; the files hold {sum(self._sizes.values())} bytes")

    def _joined(self, tensors: Mapping[str, list[Tensor]]) -> bytes:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        begin = 0
        for name, held in tensors.items():
            for tensor in held:
                header[tensor.name] = {
                    "dtype": tensor.dtype,
                    "shape": tensor.shape,
                    "data_offsets": [begin + tensor.begin, begin + tensor.end],
                }
            begin += self._sizes[name]
        raw = json.dumps(header, separators=(",", ":")).encode("ascii")
        raw += b" " * (-len(raw) % 8)
        return len(raw).to_bytes(8, "little") + raw

    def blocks(self) -> Iterator[bytes]:
        """The joined file from the start.

        Raises:
            AdapterRejected: ``truncated``: a part has become shorter; or as ``read`` does.
        """
        yield self._header
        for name in self._parts:
            yield from self._data(name)

    def _data(self, name: str) -> Iterator[bytes]:
        position, left = len(self._headers[name]), self._sizes[name]
        while left:
            block = self._read(self._parts[name], position, min(left, _BLOCK_BYTES))
            if not block:
                raise AdapterRejected(
                    Reason.TRUNCATED, f"{shown(name)[1:-1]}: became shorter; copy it again."
                )
            position, left = position + len(block), left - len(block)
            yield block

    def digest(self) -> tuple[int, bytes]:
        """Size and sha256 of the joined file; ``files`` tells of the same reading. Raises as
        ``blocks``."""
        whole = hashlib.sha256(self._header)
        files = {INDEX_FILE: (len(self._index), hashlib.sha256(self._index).hexdigest())}
        for name in self._parts:
            part = hashlib.sha256(self._headers[name])
            for block in self._data(name):
                whole.update(block)
                part.update(block)
            files[name] = (len(self._headers[name]) + self._sizes[name], part.hexdigest())
        self.files = files
        return self.size_bytes, whole.digest()
