"""The file of a trained gate: safetensors, checked whole before anything of it is used, signed.

A gate is a folder like an adapter's: ``gate.safetensors`` and, where it must be or is signed,
``adapter.sig.json`` over it, made out to ``GATE_NAME``. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from python_backend import strict_json
from python_backend.adapters import naming
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.seal import UNSIGNED, SignaturePolicy
from python_backend.fusion.gating import Gate

GATE_FILE = "gate.safetensors"
#: The name under which a gate is signed; a key's globs cover it as they cover lora_ids.
GATE_NAME = "fusion_gate_v1"
FORMAT = "lora-fusion-gate-1"
#: Largest file that is read, bytes; a thousand adapters need a megabyte.
MAX_BYTES = 64 << 20
#: Most adapters and widest vectors of a gate.
MAX_ADAPTERS, MAX_WIDTH = 4096, 1024
#: Largest magnitude of a number in it: what is beyond has not been trained.
_MAX_VALUE = 1e4
_METADATA = {"format", "adapters", "base"}


class GateFileError(Exception):
    """A gate that cannot be used; the text names the file and the cure."""


def write(folder: Path, gate: Gate) -> Path:
    """Writes the gate into ``folder``, replaced whole; the file's path.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(getattr(gate, name)) for name in _shapes(0, 0, 0)}
    metadata = {"format": FORMAT, "adapters": json.dumps(gate.names), "base": gate.base}
    path, building = folder / GATE_FILE, folder / f".{GATE_FILE}.{os.getpid()}"
    building.write_bytes(safetensors.numpy.save(tensors, metadata))
    os.replace(building, path)
    return path


def _shapes(adapters: int, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of the file with its shape."""
    return {
        "query": (hidden, width),
        "keys": (1 + adapters, width),
        "values": (1 + adapters, width),
        "readout": (2,),
    }


def read(folder: Path, *, base: str, hidden: int, signatures: SignaturePolicy = UNSIGNED) -> Gate:
    """The gate in ``folder``; the bytes that were verified are the ones that are used.

    Args:
        base, hidden: digest and row size of the served model's embeddings.

    Raises:
        GateFileError: missing, too large, unsigned where it must be signed, badly signed, damaged,
            for another model, or not a gate.
    """
    path = folder / GATE_FILE
    data = _verified_bytes(folder, path, signatures)
    metadata, tensors = _parse(path, data)
    if metadata["base"] != base:
        raise GateFileError(f"{path}: was trained on another base model; run train-gate again")
    names = _names(path, metadata["adapters"])
    width = tensors["query"].shape[-1] if tensors["query"].ndim == 2 else 0
    if not 0 < width <= MAX_WIDTH:
        raise GateFileError(f"{path}: query is not [hidden, width] with a width to {MAX_WIDTH}")
    for name, shape in _shapes(len(names), hidden, width).items():
        tensor = tensors[name]
        if tensor.shape != shape or tensor.dtype != np.float32:
            raise GateFileError(
                f"{path}: {name} is {tensor.dtype} {list(tensor.shape)}; must be float32 "
                f"{list(shape)}"
            )
        # NaN compares false: this refuses it too.
        if not np.all(np.abs(tensor) <= _MAX_VALUE):
            raise GateFileError(f"{path}: {name} holds NaN, infinite or huge values; train again")
    sharpness, advance = (float(value) for value in tensors["readout"])
    if sharpness <= 0 or advance <= 0:
        raise GateFileError(f"{path}: readout must be above 0; train again")
    return Gate(names=names, base=base, **tensors)


def _verified_bytes(folder: Path, path: Path, signatures: SignaturePolicy) -> bytes:
    try:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise GateFileError(f"{folder}: {error.strerror}; run train-gate") from None
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(GATE_FILE, flags, dir_fd=folder_fd), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise GateFileError(f"{path}: is not a regular file")
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise GateFileError(f"{path}: larger than {MAX_BYTES} bytes; this is no gate")
        digest = hashlib.sha256(data).hexdigest()
        signatures.check(GATE_NAME, folder_fd, {GATE_FILE: (len(data), digest)})
    except OSError as error:
        raise GateFileError(f"{path}: {error.strerror}; run train-gate") from None
    except AdapterRejected as error:
        raise GateFileError(f"{path}: {error.text}") from None
    finally:
        os.close(folder_fd)
    return data


def _parse(path: Path, data: bytes) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    """Metadata and tensors; of the format, with exactly the names a gate has."""
    bad = f"{path}: not a gate made by train-gate; train it again"
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise GateFileError(bad)
    try:
        # Strictly first: a name that stands there twice would silently be its last.
        metadata = strict_json.loads_object(data[8 : 8 + length]).get("__metadata__")
        tensors = safetensors.numpy.load(data)
    except (strict_json.StrictJsonError, safetensors.SafetensorError, KeyError, ValueError):
        raise GateFileError(bad) from None
    if not isinstance(metadata, dict) or metadata.keys() != _METADATA:
        raise GateFileError(bad)
    texts = {str(key): str(value) for key, value in metadata.items()}
    if texts["format"] != FORMAT or tensors.keys() != _shapes(0, 0, 0).keys():
        raise GateFileError(bad)
    if not re.fullmatch(r"[0-9a-f]{64}", texts["base"]):
        raise GateFileError(bad)
    return texts, tensors


def _names(path: Path, text: str) -> tuple[str, ...]:
    try:
        names = strict_json.loads(text)
    except strict_json.StrictJsonError:
        names = None
    if (
        not isinstance(names, list)
        or not 0 < len(names) <= MAX_ADAPTERS
        or not all(isinstance(name, str) and naming.is_lora_id(name) for name in names)
        or len(set(names)) != len(names)
    ):
        raise GateFileError(f"{path}: its adapters are not a list of distinct lora_ids")
    return tuple(names)
