"""The header of a safetensors file, read strictly, and a scan of its values.

A header is eight bytes of length and that many bytes of JSON: name to dtype, shape and offsets.
It is parsed here rather than by the library, whose mapped file raises a signal when it is cut off
under the reader. The format's rules: github.com/huggingface/safetensors (README, Format).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from python_backend import strict_json
from python_backend.adapters.rejection import AdapterRejected, Reason, shown

WEIGHTS_FILE = "adapter_model.safetensors"
MAX_HEADER_BYTES = 16 << 20
_MAX_DIMENSIONS = 8
#: Scanned at a time, bytes: small enough to stay in a core's cache.
_CHUNK_BYTES = 256 << 10

#: Bytes per element of every dtype of the format; only those in ``_FLOATS`` may be served.
_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
#: The bits without the sign as an unsigned integer order like the magnitude, so one integer
#: maximum finds both the largest value and, at or above the all-ones exponent, NaN and Inf.
_FLOATS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F80_0000),
    "F64": (np.uint64, 0x7FF0_0000_0000_0000),
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor: its name, dtype as safetensors spells it, shape, and its bytes [begin, end)
    counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _reject(reason: Reason, problem: str) -> NoReturn:
    raise AdapterRejected(reason, f"{WEIGHTS_FILE}: {problem}.")


def read_header(file: BinaryIO, size_bytes: int) -> list[Tensor]:
    """The tensors of a safetensors file in the order of their bytes, which are left to be read.

    Raises:
        AdapterRejected: ``empty_file``, ``truncated``, ``pickle``, ``header_too_large``,
            ``bad_header``, ``wrong_dtype`` or ``no_tensors``. Nothing beyond the header is read,
            and nothing is allocated that the file does not hold.
    """
    if size_bytes == 0:
        _reject(Reason.EMPTY_FILE, "the file is empty; copy it again")
    start = file.read(8)
    if len(start) < 8:
        _reject(Reason.TRUNCATED, "the file is cut off in its first eight bytes; copy it again")
    length = int.from_bytes(start, "little")
    if length > size_bytes - 8:
        _reject_start(start, length, size_bytes)
    if length > MAX_HEADER_BYTES:
        _reject(Reason.HEADER_TOO_LARGE, f"the header has {length} bytes; at most 16 MiB are read")
    raw = file.read(length)
    if len(raw) < length:
        _reject(Reason.TRUNCATED, "the file ends within its header; copy it again")
    if not raw.startswith(b"{"):
        _reject(Reason.BAD_HEADER, "the header does not start with '{'; save the adapter again")
    try:
        body = strict_json.loads_object(raw)
    except strict_json.StrictJsonError as error:
        _reject(Reason.BAD_HEADER, f"the header cannot be read: {error}")
    metadata = body.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _reject(Reason.BAD_HEADER, "__metadata__ must map text to text")
    tensors = sorted(
        (_tensor(name, entry) for name, entry in body.items()), key=lambda t: (t.begin, t.end)
    )
    if not tensors:
        _reject(Reason.NO_TENSORS, "the file holds no tensors; save the trained adapter again")
    _check_layout(tensors, size_bytes - 8 - length)
    return tensors


def _reject_start(start: bytes, length: int, size_bytes: int) -> NoReturn:
    """The reason for a first length that the file cannot hold."""
    if start.startswith(b"PK\x03\x04") or (start[0] == 0x80 and 2 <= start[1] <= 5):
        # 0x80 alone may begin an honest length, which is why this is asked only here.
        _reject(
            Reason.PICKLE,
            "this is a pickle under another name, which is never opened; save the adapter with "
            "safe_serialization=True",
        )
    if start == b"version ":
        _reject(Reason.BAD_HEADER, "this is a Git LFS pointer; run `git lfs pull`")
    if length > MAX_HEADER_BYTES:
        _reject(
            Reason.HEADER_TOO_LARGE,
            f"the header claims {length} bytes of a file of {size_bytes}; this is not a "
            "safetensors file, or it is damaged: save the adapter again",
        )
    _reject(
        Reason.TRUNCATED,
        f"the header claims {length} bytes but the file has {size_bytes}; copy it again",
    )


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _tensor(name: str, entry: object) -> Tensor:
    def bad(problem: str) -> NoReturn:
        _reject(Reason.BAD_HEADER, f"tensor {shown(name)}: {problem}")

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        bad("its header entry must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _SIZES:
        bad(f"dtype {shown(dtype)} is unknown")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_natural, shape)):
        bad("its shape is not a short list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        bad("its data_offsets are not two positions")
    if offsets[1] - offsets[0] != math.prod(shape) * _SIZES[dtype]:
        bad("its data_offsets do not fit its shape and dtype")
    if dtype not in _FLOATS:
        _reject(
            Reason.WRONG_DTYPE,
            f"tensor {shown(name)} is {dtype}; only F16, BF16, F32 and F64 can be served: save "
            "the adapter unquantised",
        )
    return Tensor(name, dtype, tuple(shape), offsets[0], offsets[1])


def _check_layout(tensors: list[Tensor], data_bytes: int) -> None:
    position = 0
    for tensor in tensors:
        if tensor.begin != position:
            _reject(
                Reason.BAD_HEADER,
                f"tensor {shown(tensor.name)} overlaps another or leaves a gap before it",
            )
        position = tensor.end
    if position > data_bytes:
        _reject(
            Reason.TRUNCATED,
            f"the file is cut off: its tensors need {position} bytes and {data_bytes} are there; "
            "copy it again",
        )
    if position < data_bytes:
        _reject(Reason.BAD_HEADER, f"{data_bytes - position} bytes follow the last tensor")


def largest_values(file: BinaryIO, tensors: list[Tensor]) -> Iterator[tuple[Tensor, float]]:
    """Each tensor with its largest magnitude; ``nan`` where a value is NaN or infinite.

    Reads ``file`` from the end of the header on, in pieces: memory stays bounded.

    Raises:
        AdapterRejected: ``truncated``, the file ended early.
    """
    piece = bytearray(_CHUNK_BYTES)
    scratch = np.empty(_CHUNK_BYTES, np.uint8)
    for tensor in tensors:
        kind, exponent = _FLOATS[tensor.dtype]
        largest, left = 0, tensor.end - tensor.begin
        while left:
            count = min(left, _CHUNK_BYTES)
            _fill(file, memoryview(piece)[:count])
            bits: npt.NDArray[np.unsignedinteger[Any]] = np.frombuffer(
                piece, kind, count // kind().itemsize
            )
            magnitude = scratch[:count].view(kind)
            # All bits but the sign.
            np.bitwise_and(bits, kind((1 << (8 * kind().itemsize - 1)) - 1), out=magnitude)
            largest = max(largest, int(magnitude.max()))
            left -= count
        yield tensor, math.nan if largest >= exponent else _value(tensor.dtype, largest)


def _fill(file: BinaryIO, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            _reject(Reason.TRUNCATED, "the file ended while it was read; copy it again")
        done += count


def widened(halves: npt.NDArray[np.unsignedinteger[Any]]) -> npt.NDArray[np.float32]:
    """bfloat16 as float32: its bits, as unsigned integers of any size, are the upper half."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _value(dtype: str, bits: int) -> float:
    """The number that ``bits`` stand for in ``dtype``."""
    if dtype == "BF16":
        return float(widened(np.array([bits], np.uint32))[0])
    kind = _FLOATS[dtype][0]
    return float(np.array(bits, kind).view(f"f{kind().itemsize}"))
