"""Small PEFT adapters as files, written byte by byte so that they may also be wrong."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from python_backend.adapters.target import ModuleShape, Target

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_NUMPY = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I8": np.int8}


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes of a Llama-like model; the defaults are SmolLM2-135M's."""

    layers: int = 30
    hidden: int = 576
    kv: int = 192
    intermediate: int = 1536
    vocab: int = 49152

    def modules(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each linear layer, by its path within a decoder layer."""
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (self.hidden, self.kv),
            "self_attn.v_proj": (self.hidden, self.kv),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.hidden, self.intermediate),
            "mlp.up_proj": (self.hidden, self.intermediate),
            "mlp.down_proj": (self.intermediate, self.hidden),
        }


SMOLLM2 = Shapes()


def target(shapes: Shapes = SMOLLM2, max_rank: int = 16, *, embeddings: bool = True) -> Target:
    """What an engine with this model can take."""
    modules = {
        f"model.layers.{layer}.{name}": ModuleShape(*sizes)
        for layer in range(shapes.layers)
        for name, sizes in shapes.modules().items()
    }
    if embeddings:
        embed, head = (shapes.vocab, shapes.hidden), (shapes.hidden, shapes.vocab)
        modules["model.embed_tokens"] = ModuleShape(*embed, kind="embedding")
        modules["lm_head"] = ModuleShape(*head, kind="lm_head")
    return Target(modules, max_rank)


@dataclasses.dataclass
class Array:
    """A tensor as safetensors stores it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: Any, dtype: str = "F16") -> Array:
        """``values`` in ``dtype``; BF16 is float32 cut to its upper half."""
        values = np.asarray(values)
        if dtype == "BF16":
            upper = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            return cls(dtype, values.shape, upper.tobytes())
        return cls(dtype, values.shape, values.astype(_NUMPY[dtype]).tobytes())

    @classmethod
    def noise(cls, shape: tuple[int, ...], dtype: str = "F16", seed: int = 0) -> Array:
        """Small normal values."""
        return cls.of(np.random.default_rng(seed).normal(0, 0.02, shape), dtype)


def encode(tensors: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        offsets = [len(data), len(data) + len(array.data)]
        header[name] = {"dtype": array.dtype, "shape": array.shape, "data_offsets": offsets}
        data += array.data
    return frame(json.dumps(header).encode(), data)


def frame(header: bytes, data: bytes = b"") -> bytes:
    """``header`` with its length before it, and ``data`` behind it."""
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


@dataclasses.dataclass
class Adapter:
    """An adapter in memory: change ``config`` or ``tensors``, then ``write``."""

    shapes: Shapes
    config: dict[str, Any]
    tensors: dict[str, Array]

    def write(self, folder: Path) -> None:
        """Writes both files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(json.dumps(self.config))
        (folder / WEIGHTS_FILE).write_bytes(encode(self.tensors))

    def add(self, path: str, sizes: tuple[int, int], rank: int, dtype: str = "F16") -> None:
        """Adds the pair of module ``path``."""
        prefix = f"base_model.model.{path}"
        names = ("lora_A.weight", "lora_B.weight")
        if path.endswith("embed_tokens"):
            names = ("lora_embedding_A", "lora_embedding_B")
        self.tensors[f"{prefix}.{names[0]}"] = Array.noise((rank, sizes[0]), dtype, 1)
        self.tensors[f"{prefix}.{names[1]}"] = Array.noise((sizes[1], rank), dtype, 2)


def good(
    shapes: Shapes = SMOLLM2,
    *,
    rank: int = 4,
    layers: tuple[int, ...] = (0, 1),
    modules: tuple[str, ...] = ("self_attn.q_proj", "self_attn.v_proj"),
    dtype: str = "F16",
    **config: Any,
) -> Adapter:
    """A healthy adapter; ``config`` overrides what PEFT would write."""
    written = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "some-org/some-model",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": sorted({name.split(".")[-1] for name in modules}),
        "bias": "none",
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    adapter = Adapter(shapes, {**written, **config}, {})
    for layer in layers:
        for name in modules:
            adapter.add(f"model.layers.{layer}.{name}", shapes.modules()[name], rank, dtype)
    return adapter
