"""A staged adapter as a part of a mixture: which modules it has, and their matrices one by one."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from python_backend.adapters import canonical, validation, weights
from python_backend.adapters.peft_config import CONFIG_FILE
from python_backend.adapters.target import Target
from python_backend.adapters.validation import Half
from python_backend.adapters.weights import WEIGHTS_FILE, Tensor
from python_backend.fusion.concat import Factors

#: Headers of parts that are kept, so that a mixture of known parts reads their matrices only.
_KEPT = 64
_DTYPES: dict[str, type[np.generic]] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


@dataclasses.dataclass(frozen=True)
class Module:
    """One module of a part: its two matrices' places in the file, and what they are scaled by.

    ``path`` is what the file calls it.
    """

    path: str
    a: Tensor
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        """The true rank, as the matrix has it."""
        return self.a.shape[0]


@dataclasses.dataclass(frozen=True)
class Source:
    """A verified, staged adapter.

    Args:
        weights: its weight file; ``begin`` is where the first tensor begins, bytes.
        modules: by the engine's path of the module.
    """

    weights: Path
    begin: int
    modules: Mapping[str, Module]

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of each module."""
        return {path: module.rank for path, module in self.modules.items()}

    def factors(self, file: BinaryIO, path: str) -> Factors:
        """The matrices of the module ``path``; ``file`` is the weight file, open."""
        module = self.modules[path]
        return Factors(self._read(file, module.a), self._read(file, module.b), module.scale)

    def _read(self, file: BinaryIO, tensor: Tensor) -> npt.NDArray[Any]:
        file.seek(self.begin + tensor.begin)
        raw = file.read(tensor.end - tensor.begin)
        values: npt.NDArray[Any]
        if tensor.dtype == "BF16":
            values = weights.widened(np.frombuffer(raw, "<u2"))
        else:
            values = np.frombuffer(raw, _DTYPES[tensor.dtype])
        return values.reshape(tensor.shape)


class Sources:
    """Reads parts; one thread at a time.

    Args:
        target: what the engine calls its modules.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kept: OrderedDict[Path, Source] = OrderedDict()

    def read(self, staged: Path) -> Source:
        """The staged adapter in ``staged``, whose name is its digest: it never changes.

        Raises:
            OSError, AdapterRejected: it is not there any more, or damaged.
        """
        found = self._kept.get(staged)
        if found is None:
            found = self._kept[staged] = self._read(staged)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(staged)
        return found

    def _read(self, staged: Path) -> Source:
        scalings = canonical.Scalings(json.loads((staged / CONFIG_FILE).read_bytes()))
        path = staged / WEIGHTS_FILE
        with open(path, "rb") as file:
            tensors = weights.read_header(file, path.stat().st_size)
            begin = file.tell()
        sides: dict[str, dict[str, Half]] = {}
        for tensor in tensors:
            half = validation.place(tensor, self._target)
            sides.setdefault(self._target.module_path(half.path), {})[half.side] = half
        modules = {}
        for name, side in sides.items():
            a, b = side["A"], side["B"]
            modules[name] = Module(
                a.path, a.tensor, b.tensor, scalings.of(a.path, a.tensor.shape[0])
            )
        return Source(path, begin, modules)
