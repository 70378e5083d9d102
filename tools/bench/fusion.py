"""Mixtures: against dense weights, how soon they are made, and how fast they answer.

Exactness with two trained adapters of the demo on 20 prompts, everything in float32; building with
two adapters of rank 8 on every projection; speed beside one adapter of the same rank, in turns.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from python_backend.adapters import staging
from python_backend.engine.base import Job, Version
from python_backend.fusion.building import Builder
from python_backend.fusion.recipe import Recipe
from python_backend.messages import EngineRequest
from python_backend.ticket import Part
from tools.bench.adapter_house import AdapterHouse, adapter_house, large_adapter
from tools.bench.dense import Judge
from tools.bench.figures import Figures, Promise, percentile
from tools.demo.examples import ADAPTERS, examples

_MIXED = (("fin_risk_v1", 0.6), ("svc_chat_v1", 0.3))
_PROMPTS, _ANSWER = 20, 16
_STREAMS, _TOKENS = 16, 32


@dataclasses.dataclass(frozen=True)
class Exactness:
    """Relative error of logits, of the mixture's file and of the base for comparison; answers that
    are the dense model's, of how many."""

    error: float
    base_error: float
    same: int
    of: int


class _Kitchen:
    """Stages adapters and builds mixtures for one engine."""

    def __init__(self, house: AdapterHouse, folder: Path) -> None:
        self._staged, self._target = folder / "staged", house.info.target
        self.builder = Builder(house.info.target, self._staged)
        self._ids = itertools.count(10_000)

    def stage(self, folder: Path) -> Path:
        return staging.stage(folder, self._staged, self._target, 1 << 30).path

    def version(self, lora_id: str, path: Path) -> Version:
        return Version(lora_id, path.name, next(self._ids), path)

    def mix(self, parts: Sequence[tuple[Path, float]]) -> Path:
        recipe = Recipe(tuple(Part("bench_part_v1", folder.name, w) for folder, w in parts))
        return self.builder.write(self.builder.plan(parts), recipe.digest)


async def _exactness(house: AdapterHouse, kitchen: _Kitchen, demo: Path, count: int) -> Exactness:
    parts = [(kitchen.stage(demo / "adapters" / name), weight) for name, weight in _MIXED]
    mixture = kitchen.mix(parts)
    version = kitchen.version("bench_mixed_v1", mixture)
    texts = [e.prompt for name in ADAPTERS for e in examples(name)[: -(-count // len(ADAPTERS))]]
    prompts = [await house.engine.encode(t, special_tokens=True) for t in texts[:count]]
    answers = await asyncio.gather(*(_greedy(house, ids, version) for ids in prompts))
    judge = Judge(Path(house.info.model_dir), house.info.target)
    error = base_error = 0.0
    same = 0
    for ids, answer in zip(prompts, answers, strict=True):
        whole = [*ids, *answer[:-1]]
        base = judge.logits(whole)
        with judge.dense(parts):
            dense = judge.logits(whole)
        with judge.adapted(mixture):
            ours = judge.logits(whole)
        scale = float(dense.abs().max())
        error = max(error, float((ours - dense).abs().max()) / scale)
        base_error = max(base_error, float((base - dense).abs().max()) / scale)
        same += dense[len(ids) - 1 :].argmax(-1).tolist() == list(answer)
    return Exactness(error, base_error, same, len(prompts))


async def _greedy(house: AdapterHouse, ids: Sequence[int], version: Version) -> list[int]:
    """The tokens that the engine answers."""
    sampling = {"temperature": 0.0, "max_tokens": _ANSWER, "ignore_eos": True, "logprobs": 0}
    job = Job(
        f"exact{ids[-1]}-{len(ids)}-{id(ids)}", tuple(ids), EngineRequest(sampling), version, ""
    )
    async for step in house.engine.generate(job):
        positions = json.loads(step.sequences[0].logprobs or "[]")
    return [int(next(iter(position))) for position in positions]


def _build_ms(kitchen: _Kitchen, parts: Sequence[Path], count: int, first: int = 1) -> list[float]:
    """Milliseconds for each of ``count`` different mixtures, written and thrown away."""
    took = []
    for number in range(first, first + count):
        began = time.perf_counter()
        path = kitchen.mix([(parts[0], number / 1000), (parts[1], 1 - number / 1000)])
        took.append(1e3 * (time.perf_counter() - began))
        staging.discard(path)
    return took


async def _gaps_ms(house: AdapterHouse, version: Version, tokens: int) -> list[float]:
    """Between the tokens of one stream."""
    times = []
    async for _ in house.engine.generate(house.job(version, tokens)):
        times.append(time.perf_counter())
    return [1e3 * (b - a) for a, b in itertools.pairwise(times)]


async def _beside(
    house: AdapterHouse, kitchen: _Kitchen, version: Version, parts: Sequence[Path], tokens: int
) -> tuple[list[float], list[float]]:
    """Gaps between tokens while nothing is built, and while one mixture after the other is."""
    alone = await _gaps_ms(house, version, tokens)
    stop = False

    def build() -> None:
        for first in itertools.count(500):
            if stop:
                return
            _build_ms(kitchen, parts, 1, first)

    building = asyncio.get_running_loop().run_in_executor(None, build)
    try:
        return alone, await _gaps_ms(house, version, tokens)
    finally:
        stop = True
        await building


async def _rate(house: AdapterHouse, version: Version) -> float:
    """Tokens per second of all streams together."""

    async def stream() -> None:
        async for _ in house.engine.generate(house.job(version, _TOKENS)):
            pass

    began = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(_STREAMS)))
    return _STREAMS * _TOKENS / (time.perf_counter() - began)


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Measures one after the other; speeds in turns."""
    builds, turns, tokens = (20, 3, 60) if quick else (100, 9, 200)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with adapter_house(demo, folder, dtype="float32", max_lora_rank=16) as house:
            kitchen = _Kitchen(house, folder)
            exact = await _exactness(house, kitchen, demo, _PROMPTS)
            large_adapter(folder / "other", house.info)
            large_adapter(folder / "wide", house.info, rank=16)
            # Different files: one with the other's bytes would be the same part twice.
            _differ(folder / "other" / "adapter_config.json")
            parts = [kitchen.stage(house.adapter), kitchen.stage(folder / "other")]
            wide = kitchen.version("bench_wide_v1", kitchen.stage(folder / "wide"))
            mixture = kitchen.mix([(parts[0], 0.6), (parts[1], 0.3)])
            mixed = kitchen.version("bench_mixed_v2", mixture)
            took = _build_ms(kitchen, parts, builds)
            for version in (wide, mixed):
                await _rate(house, version)
            pairs = [(await _rate(house, wide), await _rate(house, mixed)) for _ in range(turns)]
            alone, beside = await _beside(house, kitchen, wide, parts, tokens)
    return _figures(exact, took, pairs, alone, beside)


def _differ(config: Path) -> None:
    body = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps({**body, "lora_alpha": body["lora_alpha"] * 2}), "utf-8")


def _figures(
    exact: Exactness,
    took: Sequence[float],
    pairs: Sequence[tuple[float, float]],
    alone: Sequence[float],
    beside: Sequence[float],
) -> Figures:
    one, mixed = (median(rates) for rates in zip(*pairs, strict=True))
    ratio = median(second / first for first, second in pairs)
    rows = (
        ("logits beside dense weights", f"{exact.error:.1e}", f"base: {exact.base_error:.1e}"),
        ("greedy answers that are the dense model's", f"{exact.same}", f"of {exact.of}"),
        ("building two adapters of rank 8, ms", f"{median(took):.1f}", f"{max(took):.1f} at most"),
        ("one adapter of rank 16, tokens/s", f"{one:.1f}", ""),
        ("a mixture of rank 16, tokens/s", f"{mixed:.1f}", ""),
        ("between tokens, ms", f"{median(alone):.1f}", f"p90 {percentile(alone, 90):.1f}"),
        ("the same while building", f"{median(beside):.1f}", f"p90 {percentile(beside, 90):.1f}"),
    )
    same = exact.same / exact.of
    built = percentile(took[1:], 90)
    promises = (
        Promise("relative error of logits", exact.error, "<= 0.001", exact.error <= 1e-3),
        Promise("share of greedy answers alike", same, "= 1", same == 1),
        Promise("building, warm, ms (p90)", built, "<= 50", built <= 50),
        Promise("speed of a mixture beside one of its rank", ratio, ">= 0.95", ratio >= 0.95),
        Promise("between tokens while building, ratio", median(beside) / median(alone)),
    )
    return Figures("Mixtures of adapters", ("what", "value", ""), rows, promises)
