"""``python -m tools plan``."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Annotated

import typer

from python_backend import memory_plan
from python_backend.engine import fitting

_UNITS = {
    "": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


def plan(
    model: Annotated[Path, typer.Option(help="Folder of the base model.")],
    memory: Annotated[str, typer.Option(help="Memory of each worker, such as 80GiB.")],
    rank: Annotated[int, typer.Option(min=1, help="Largest rank of an adapter.")] = 16,
    fusion_rank: Annotated[int, typer.Option(min=0, help="Largest sum of ranks in a fusion.")] = 0,
    loras: Annotated[
        int | None, typer.Option(min=1, help="Slots; without it as many as fit.")
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="tensor_parallel_size.")] = 1,
    max_model_len: Annotated[int, typer.Option(min=1, help="Longest request, tokens.")] = 1024,
    dtype: Annotated[str, typer.Option(help="As the engine's; auto: the model's own.")] = "auto",
    shm_tier: Annotated[
        str, typer.Option(help="tiers.shm_bytes, such as 8GiB: copies of adapters in /dev/shm.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """60 % for weights and KV cache, 30 % for adapters, 10 % free: the engine arguments for it."""
    try:
        size = parse_bytes(memory)
        shm = memory_plan.shm_bytes(parse_bytes(shm_tier) if shm_tier else 0)
        shape, weights = fitting.read(model, dtype)
        found = memory_plan.plan(
            shape,
            size,
            rank=rank,
            fusion_rank=fusion_rank,
            max_loras=loras,
            max_model_len=max_model_len,
            tp=tp,
            weight_bytes=weights,
        )
    except memory_plan.PlanError as error:
        typer.echo(f"no plan: {error}.", err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(
            json.dumps(
                {"plan": dataclasses.asdict(found), "engine": found.engine(), "shm_bytes": shm}
            )
        )
        return
    for line in lines(found, shm):
        typer.echo(line)


def parse_bytes(text: str) -> int:
    """Bytes of a text such as ``80GiB``.

    Raises:
        PlanError: it is none.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", text.strip())
    if found is None or found[2] not in _UNITS or not float(found[1]):
        raise memory_plan.PlanError(f"{text!r} is no memory size; write 80GiB, 512MiB or bytes")
    return int(float(found[1]) * _UNITS[found[2]])


def lines(found: memory_plan.Plan, shm_bytes: int) -> list[str]:
    """The plan for a person to read, the arguments as they go into serving.yaml.

    Args:
        shm_bytes: what /dev/shm has to hold.
    """
    used = found.weight_bytes + found.kv_bytes + found.adapter_bytes

    def mib(size: int) -> str:
        return f"{size / (1 << 20):10.1f} MiB"

    return [
        f"# weights    {mib(found.weight_bytes)}",
        f"# KV cache   {mib(found.kv_bytes)}  {found.kv_tokens} tokens",
        f"# adapters   {mib(found.adapter_bytes)}  {found.slot_bytes} bytes a slot",
        f"# left free  {mib(found.memory_bytes - used)}",
        f"# /dev/shm   {mib(shm_bytes)}  of the host's memory",
        f"memory_limit_bytes: {found.memory_bytes}",
        "engine:",
        *(f"  {name}: {value}" for name, value in found.engine().items()),
    ]
