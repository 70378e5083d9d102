"""The real engine in this process, adapters made for it, and what its processes hold."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from python_backend.cores import usable_cores
from python_backend.engine import orphans
from python_backend.engine.arguments import engine_arguments, has_gpu, prepare_process
from python_backend.engine.async_llm import AsyncLLMEngine
from python_backend.engine.base import EngineInfo, Job, Version
from python_backend.messages import EngineRequest
from tools.bench.server import engine_settings

SLOTS, SEATS = 4, 16
_RANK = 8
_TOKENS = 16
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _config(rank: int, modules: tuple[str, ...]) -> str:
    return json.dumps(
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": rank,
            "lora_alpha": rank,
            "target_modules": list(modules),
            "bias": "none",
        }
    )


def small_adapters(root: Path, info: EngineInfo, count: int) -> None:
    """So many adapters of rank 1 on one layer, every one of them different."""
    name = next(name for name in info.target.modules if name.endswith("down_proj"))
    shape = info.target.modules[name]
    numbers = np.random.default_rng(1)
    for number in range(count):
        folder = root / f"bench_s{number:04d}_v1"
        folder.mkdir(parents=True)
        tensors = {
            f"base_model.model.{name}.lora_A.weight": numbers.random(
                (1, shape.in_features), np.float32
            ),
            f"base_model.model.{name}.lora_B.weight": np.zeros((shape.out_features, 1), np.float32),
        }
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(_config(1, ("down_proj",)), "utf-8")


def large_adapter(folder: Path, info: EngineInfo, rank: int = _RANK) -> int:
    """An adapter on every projection of every layer, fp32; the bytes of its weights.

    Of the demo's model and rank 8 it has 10 MB.
    """
    numbers = np.random.default_rng(2)
    tensors = {}
    for name, shape in info.target.modules.items():
        if name.rsplit(".", 1)[-1] in _MODULES:
            path = f"base_model.model.{name}"
            a = numbers.standard_normal((rank, shape.in_features), np.float32)
            tensors[f"{path}.lora_A.weight"] = a * np.float32(0.01)
            tensors[f"{path}.lora_B.weight"] = np.zeros((shape.out_features, rank), np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(_config(rank, _MODULES), "utf-8")
    return (folder / "adapter_model.safetensors").stat().st_size


class AdapterHouse:
    """A started engine, and versions for it that nothing has loaded yet.

    All have the same weights: content makes no difference to cost, names and ids do.
    """

    def __init__(self, engine: AsyncLLMEngine, info: EngineInfo, folder: Path) -> None:
        self.engine, self.info, self.folder = engine, info, folder
        self.adapter = folder / "large"
        self.size_bytes = large_adapter(self.adapter, info)
        self._ids = itertools.count(1)
        self._random = random.Random(3)  # noqa: S311 - prompts, no secrets

    def version(self, folder: Path | None = None) -> Version:
        """A new one, of the large adapter or of the one in ``folder``."""
        int_id = next(self._ids)
        return Version(f"bench_a{int_id}_v1", f"{int_id:064x}", int_id, folder or self.adapter)

    def job(self, version: Version | None, output: int, prompt: int = _TOKENS) -> Job:
        """A streaming job with a prompt of its own, of so many tokens."""
        sampling: dict[str, Any] = {
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        ids = tuple(self._random.randrange(100, 10_000) for _ in range(prompt))
        request = EngineRequest(sampling, stream=True)
        return Job(f"bench{next(self._ids)}", ids, request, version, "bench")

    async def ttft_s(self, version: Version, engine: Any = None) -> float:
        """Seconds until a request for one token has it."""
        began = time.perf_counter()
        async for _ in (engine or self.engine).generate(self.job(version, 1)):
            pass
        return time.perf_counter() - began

    async def slow_reads(self, seconds: float) -> None:
        """From now on every read of an adapter takes so much longer."""
        await self.engine.slow_reads(seconds)


@asynccontextmanager
async def adapter_house(demo: Path, folder: Path, **changes: Any) -> AsyncIterator[AdapterHouse]:
    """An engine over the demo's model; ``changes`` are engine arguments."""
    raw = {
        **engine_settings(demo),
        "max_num_seqs": SEATS,
        "max_loras": SLOTS,
        **changes,
    }
    arguments = engine_arguments(raw, 64)
    orphans.claim()
    prepare_process(arguments, usable_cores(), gpu=has_gpu())
    engine = AsyncLLMEngine(arguments, folder / "failures")
    try:
        yield AdapterHouse(engine, await engine.start(), folder)
    finally:
        await engine.stop()


def _processes(pid: str = "self") -> Iterator[Path]:
    """This process and all below it."""
    process = Path("/proc") / pid
    yield process
    for task in (process / "task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _processes(child)


def held() -> tuple[int, int]:
    """(bytes, file descriptors) of this process and all below it.

    Anonymous and shared memory: how much of a library counts as ours depends on who else has it.
    """
    size = files = 0
    for process in _processes():
        with contextlib.suppress(OSError):
            rollup = (process / "smaps_rollup").read_text()
            for kind in ("Anonymous", "Pss_Shmem"):
                size += 1024 * int(rollup.split(f"\n{kind}:")[1].split()[0])
            files += sum(1 for _ in (process / "fd").iterdir())
    return size, files


def available() -> int:
    """Bytes that the machine has left."""
    text = Path("/proc/meminfo").read_text("ascii")
    return 1024 * int(text.split("MemAvailable:")[1].split()[0])


async def every(period_s: float, count: int) -> AsyncIterator[int]:
    """0, 1, … at fixed times, whatever happens in between."""
    began = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number * period_s - time.perf_counter()))
        yield number
