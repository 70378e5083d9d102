"""Refuses engine arguments that do not fit the memory they were given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from python_backend import memory_plan
from python_backend.engine.arguments import EngineStartError
from python_backend.lora_metrics import MEMORY
from python_backend.metrics import Update

_DEFAULT_LEN = 1024


def check(arguments: dict[str, Any], limit_bytes: int | None) -> None:
    """Lets an engine start if its plan fits; without a limit everything does.

    Args:
        limit_bytes: memory of each worker.

    Raises:
        EngineStartError: it does not fit; the text names the number to change.
    """
    if limit_bytes is None:
        return
    folder = Path(str(arguments["model"]))
    try:
        model, weights = read(folder, str(arguments.get("dtype") or "auto"))
        memory_plan.plan(
            model,
            limit_bytes,
            rank=int(arguments["max_lora_rank"]),
            max_loras=int(arguments["max_loras"]),
            kv_bytes=_number(arguments.get("kv_cache_memory_bytes")),
            max_model_len=_number(arguments.get("max_model_len")) or _DEFAULT_LEN,
            tp=_number(arguments.get("tensor_parallel_size")) or 1,
            weight_bytes=weights,
        )
    except memory_plan.PlanError as error:
        raise EngineStartError(f"memory_limit_bytes is {limit_bytes}: {error}") from None


def budgets(limit_bytes: int | None) -> list[Update]:
    """What the plan gives to each part but the slots, as metrics; nothing without a limit."""
    return [
        Update(MEMORY, (size,), (("pool", pool), ("kind", "budget")))
        for pool, size in memory_plan.budgets(limit_bytes).items()
    ]


def read(folder: Path, dtype: str = "auto") -> tuple[memory_plan.Model, int | None]:
    """A model in a folder, and the bytes of its weight files (None if there are none).

    Raises:
        memory_plan.PlanError: its configuration cannot be read, or has no formula.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise memory_plan.PlanError(f"{folder}/config.json cannot be read: {error}") from None
    files = [path.stat().st_size for path in folder.glob("*.safetensors")]
    return memory_plan.Model.of(config, dtype), sum(files) or None


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
