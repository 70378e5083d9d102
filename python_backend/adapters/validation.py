"""Whether an adapter fits the live engine, wholly: what passes can be loaded, and does something.

vLLM 0.32 accepts, without a word, tensors smaller than a layer, ranks other than the
configuration's, unknown prefixes, extra layers, NaN and int8, and it dies of others; so every
tensor must match a module of the engine, in both shapes, with its pair, in finite numbers.
"""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any, BinaryIO, NoReturn

from python_backend.adapters import canonical, peft_config, weights
from python_backend.adapters.peft_config import PeftConfig
from python_backend.adapters.rejection import AdapterRejected, Reason, shown
from python_backend.adapters.target import ModuleShape, Target
from python_backend.adapters.weights import WEIGHTS_FILE, Tensor

#: Largest magnitude of a weight, and of a ``lora_B`` weight times its scaling (vLLM folds the
#: scaling into it): float16's largest number, so a file is judged alike whatever the engine casts
#: to. Training gives values below 100.
MAX_MAGNITUDE = 65504.0
_PREFIX = "base_model.model."
_SUFFIXES = {
    ".lora_A.weight": ("A", False),
    ".lora_B.weight": ("B", False),
    ".lora_embedding_A": ("A", True),
    ".lora_embedding_B": ("B", True),
}


@dataclasses.dataclass(frozen=True)
class ValidatedAdapter:
    """An adapter that the engine can take.

    Args:
        rank: the largest rank of a module.
        size_bytes: size of the weight file.
        config: the canonical ``adapter_config.json``: only what the engine needs.
        tensors: every tensor's name, in the file's order.
        modules: each module's path in the file, with its rank.
    """

    rank: int
    size_bytes: int
    config: dict[str, Any]
    tensors: tuple[str, ...]
    modules: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Half:
    """A tensor's place: side A or B of the module that the file calls ``path``."""

    tensor: Tensor
    path: str
    side: str
    shape: ModuleShape


def validate_bytes(
    config: bytes, content: bytes, target: Target, max_file_bytes: int
) -> ValidatedAdapter:
    """As ``validate``, for an adapter in memory."""
    return validate(config, io.BytesIO(content), target, max_file_bytes)


def validate(
    config: bytes, file: BinaryIO, target: Target, max_file_bytes: int
) -> ValidatedAdapter:
    """Judges an adapter: ``config`` its adapter_config.json, ``file`` its weights, at the start.

    The caller must hold a copy that nobody else writes to.

    Raises:
        AdapterRejected: it must not be loaded; the reason is one of the closed list.
        OSError: the file cannot be read.
    """
    peft = peft_config.parse(config, target.max_rank)
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size_bytes > max_file_bytes:
        raise AdapterRejected(
            Reason.TOO_LARGE,
            f"{WEIGHTS_FILE}: {size_bytes} bytes; adapters.max_file_bytes allows {max_file_bytes}.",
        )
    tensors = weights.read_header(file, size_bytes)
    halves = [place(tensor, target) for tensor in tensors]
    _check_pairs(halves, target)
    paths = list(dict.fromkeys(half.path for half in halves))
    known = peft.ranks_and_scalings(paths)
    for half in halves:
        _check_shape(half, known[half.path][0])
    if not target.per_module_scaling:
        _check_one_scaling(peft, known)
    _check_values(file, halves, {path: entry[2] for path, entry in known.items()})
    ranks = {path: entry[0] for path, entry in known.items()}
    return ValidatedAdapter(
        rank=max(ranks.values()),
        size_bytes=size_bytes,
        config=canonical.config(peft, ranks, {path: entry[1] for path, entry in known.items()}),
        tensors=tuple(tensor.name for tensor in tensors),
        modules=ranks,
    )


def _reject(reason: Reason, tensor: Tensor, problem: str) -> NoReturn:
    raise AdapterRejected(reason, f"{WEIGHTS_FILE}: tensor {shown(tensor.name)} {problem}.")


def place(tensor: Tensor, target: Target) -> Half:
    """Where ``tensor`` belongs in the engine's model.

    Raises:
        AdapterRejected: nowhere.
    """
    suffix = next((known for known in _SUFFIXES if tensor.name.endswith(known)), None)
    if suffix is None:
        _reject(
            Reason.FOREIGN_TENSOR,
            tensor,
            "is not a LoRA matrix (lora_A or lora_B); save the adapter without full weights "
            "(save_embedding_layers=False), biases and magnitudes",
        )
    side, embedded = _SUFFIXES[suffix]
    path = tensor.name.removeprefix(_PREFIX).removesuffix(suffix)
    if (why := target.refusal(path)) is not None:
        _reject(
            Reason.UNSUPPORTED_FEATURE,
            tensor,
            f"belongs to a layer that this engine cannot adapt: {why}; train without it "
            "(exclude_modules)",
        )
    shape = target.modules.get(target.module_path(path))
    # Without the prefix vLLM takes a name as it is (parse_fine_tuned_lora_name), and so do we.
    if shape is None:
        _reject(
            Reason.UNKNOWN_MODULE,
            tensor,
            "matches no module of the served model; the adapter was made for another model, or "
            f"its names need another prefix (expected {_PREFIX}<module>)",
        )
    if embedded != (shape.kind == "embedding"):
        _reject(Reason.UNKNOWN_MODULE, tensor, f"is named wrongly for a layer of kind {shape.kind}")
    return Half(tensor, path, side, shape)


def _check_pairs(halves: list[Half], target: Target) -> None:
    """Every module has exactly one A and one B."""
    seen: dict[tuple[str, str], Half] = {}
    for half in halves:
        place = (target.module_path(half.path), half.side)
        if place in seen:
            _reject(Reason.DUPLICATE_TENSOR, half.tensor, "names a matrix that is there already")
        seen[place] = half
    for (module, side), half in seen.items():
        other = "B" if side == "A" else "A"
        # Patterns are matched on the file's path, so both halves must use the same one.
        if (partner := seen.get((module, other))) is None or partner.path != half.path:
            _reject(Reason.HALF_PAIR, half.tensor, f"has no lora_{other} beside it; save again")


def _check_shape(half: Half, rank: int) -> None:
    shape, layer = half.tensor.shape, half.shape
    expected = (rank, layer.in_features) if half.side == "A" else (layer.out_features, rank)
    if shape == expected:
        return
    problem = f"has shape {list(shape)}; the served model and the configuration want "
    problem += f"{list(expected)}"
    if len(shape) == 2 and shape[half.side == "A"] == expected[half.side == "A"]:
        _reject(
            Reason.RANK_MISMATCH,
            half.tensor,
            f"{problem}: correct r or rank_pattern in {peft_config.CONFIG_FILE}",
        )
    _reject(Reason.WRONG_SHAPE, half.tensor, f"{problem}: it was made for another model")


def _check_one_scaling(peft: PeftConfig, known: dict[str, tuple[int, float, float]]) -> None:
    default = peft.lora_alpha / (peft.r**0.5 if peft.use_rslora else peft.r)
    for path, (_, _, scaling) in known.items():
        if scaling != default:
            raise AdapterRejected(
                Reason.UNSUPPORTED_FEATURE,
                f"{peft_config.CONFIG_FILE}: {shown(path)} has a scaling of its own "
                "(rank_pattern or alpha_pattern), which this engine's version does not honour.",
            )


def _check_values(file: BinaryIO, halves: list[Half], scalings: dict[str, float]) -> None:
    by_name = {half.tensor.name: half for half in halves}
    for tensor, largest in weights.largest_values(file, [half.tensor for half in halves]):
        if largest != largest:  # NaN stands for NaN and Inf
            _reject(
                Reason.NON_FINITE, tensor, "holds NaN or infinite values; the training diverged"
            )
        half = by_name[tensor.name]
        bound = MAX_MAGNITUDE
        if half.side == "B":
            bound /= max(1.0, scalings[half.path])
        if largest > bound:
            _reject(
                Reason.OUT_OF_RANGE,
                tensor,
                f"holds a value of magnitude {largest:.3g}, beyond {bound:.6g}: it would overflow "
                "in half precision",
            )
