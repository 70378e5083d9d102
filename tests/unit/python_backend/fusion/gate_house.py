"""A small base model's embeddings and a gate over them, both made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from python_backend.fusion.gating import Gate

NAMES = ("fin_risk_v1", "qa_testgen_v1", "svc_chat_v1")
VOCABULARY, HIDDEN, WIDTH = 50, 16, 8


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def make_gate(base: str = "0" * 64, **changes: Any) -> Gate:
    parts = {
        "names": NAMES,
        "query": random(HIDDEN, WIDTH, seed=1),
        "keys": random(1 + len(NAMES), WIDTH, seed=2),
        "values": random(1 + len(NAMES), WIDTH, seed=3),
        "readout": np.array([2.0, 1.0], np.float32),
        "base": base,
    }
    return Gate(**{**parts, **changes})


def make_model(
    folder: Path, name: str = "model.embed_tokens.weight", seed: int = 9, hidden: int = HIDDEN
) -> Any:
    """A folder with nothing but a matrix of fp32 embeddings; the matrix."""
    folder.mkdir(parents=True, exist_ok=True)
    matrix = random(VOCABULARY, hidden, seed=seed)
    tensors = {"lm_head.weight": random(4, 4), name: matrix}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return matrix
