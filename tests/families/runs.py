"""A family's base model, its adapters and what one engine made of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tests.families import adapters, models

ROOT = Path(__file__).parents[2]
#: Token ids: short, longer than a block of 16, repetitive.
PROMPTS = [[7, 3, 9], list(range(40, 75)), [5] * 3 + [100, 200, 30, 40]]
TOKENS = 12


@dataclasses.dataclass(frozen=True)
class Run:
    """``result`` is what ``drive`` wrote; ``folders`` and ``mixtures`` are by name."""

    base: torch.nn.Module
    folders: dict[str, Path]
    result: dict[str, Any]
    mixtures: dict[str, list[tuple[str, float]]]


def run(family: str, work: Path, **engine: Any) -> Run:
    """Makes the family's models below ``work`` and runs them through an engine."""
    base = models.make(family, work / "model")
    folders = adapters.make(family, base, work / "adapters")
    mixtures = adapters.MIXTURES.get(family, {})
    job = {
        "engine": {
            "model": str(work / "model"),
            # Exact to the token; adapters are then computed in float32 too.
            "dtype": "float32",
            "max_model_len": 128,
            "max_num_seqs": 16,
            # Fewer than adapters: they are switched all the time.
            "max_loras": 2,
            "max_lora_rank": 32,
            "kv_cache_memory_bytes": 64 << 20,
            **engine,
        },
        "mixtures": mixtures,
        "adapters": {name: str(folder) for name, folder in folders.items()},
        "prompts": PROMPTS,
        "tokens": TOKENS,
    }
    (work / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, "-m", "tests.families.drive", work / "job.json", work / "result.json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return Run(base, folders, json.loads((work / "result.json").read_text()), mixtures)
