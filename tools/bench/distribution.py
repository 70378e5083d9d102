"""Mode ``distribution``: what three parts in lockstep cost beside one part answered as usual.

Float32, so that a row's numbers do not hang on the batch it is computed in; in turns, since a
machine's speed drifts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
from pathlib import Path
from statistics import median

from python_backend.auto_settings import DistributionSettings
from python_backend.engine.base import Job, Version
from python_backend.fusion.lockstep import Stream, decode
from python_backend.messages import EngineRequest
from tools.bench.adapter_house import AdapterHouse, adapter_house
from tools.bench.figures import Figures, Promise
from tools.demo.examples import ADAPTERS

_SHARES = (0.5, 0.3, 0.2)
_PROMPT = "The borrower already has four loans and asks for a fifth to pay the others."
_CANDIDATES = DistributionSettings().candidates


def _streams(parts: list[Version | None], job: Job) -> list[Stream]:
    return [
        Stream(
            dataclasses.replace(job, uid=f"{job.uid}-{n}", version=version, cache_salt=f"s{n}"),
            share,
        )
        for n, (version, share) in enumerate(zip(parts, _SHARES, strict=True))
    ]


async def _one_s(house: AdapterHouse, version: Version, tokens: int) -> float:
    """Seconds for an ordinary answer."""
    began = time.perf_counter()
    async for _ in house.engine.generate(house.job(version, tokens)):
        pass
    return time.perf_counter() - began


async def _mixed_s(house: AdapterHouse, parts: list[Version | None], tokens: int) -> float:
    """Seconds for the mixture of all parts, of as many tokens."""
    job = house.job(None, tokens)
    began = time.perf_counter()
    async for _ in decode(house.engine, house.info, _streams(parts, job), _CANDIDATES):
        pass
    return time.perf_counter() - began


async def _error(house: AdapterHouse, parts: list[Version | None], tokens: int) -> float:
    """The largest difference of a mixed chance and the hand-computed one, of ten a token."""
    ids = await house.engine.encode(_PROMPT, special_tokens=True)
    sampling = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, "logprobs": 10}
    job = Job("hand", ids, EngineRequest(sampling, stream=True), None, "")
    rows = []
    async for step in decode(house.engine, house.info, _streams(parts, job), _CANDIDATES):
        rows += json.loads(step.sequences[0].logprobs or "[]")
    worst, prefix = 0.0, ids
    for number, row in enumerate(rows):
        chances = [await _chances(house, prefix, part, f"{number}") for part in parts]
        for token, entry in row.items():
            by_hand = sum(w * p.get(token, 0.0) for w, p in zip(_SHARES, chances, strict=True))
            worst = max(worst, abs(math.exp(entry["logprob"]) - by_hand))
        prefix = (*prefix, int(min(row, key=lambda token: row[token]["rank"])))
    return worst


async def _chances(
    house: AdapterHouse, ids: tuple[int, ...], version: Version | None, name: str
) -> dict[str, float]:
    """A part's own chances for its likeliest tokens."""
    sampling = {"max_tokens": 1, "temperature": 0.0, "logprobs": 2000}
    uid = f"hand{name}{version.int_id if version else 0}"
    async for step in house.engine.generate(Job(uid, ids, EngineRequest(sampling), version, "h")):
        (row,) = json.loads(step.sequences[0].logprobs or "[]")
    return {token: math.exp(entry["logprob"]) for token, entry in row.items()}


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Measures exactness once, and the two speeds in turns."""
    turns, tokens, exact_tokens = (3, 48, 8) if quick else (9, 128, 24)
    with tempfile.TemporaryDirectory() as name:
        async with adapter_house(demo, Path(name), dtype="float32") as house:
            paths = [(demo / "adapters" / lora_id).resolve() for lora_id in ADAPTERS[:2]]
            new = [dataclasses.replace(house.version(), path=path) for path in paths]
            parts: list[Version | None] = [*new, None]
            error = await _error(house, parts, exact_tokens)
            await _one_s(house, new[0], tokens)
            pairs = [
                (await _one_s(house, new[0], tokens), await _mixed_s(house, parts, tokens))
                for _ in range(turns)
            ]
    one, mixed = (1e3 * median(times) / tokens for times in zip(*pairs, strict=True))
    ratio = median(b / a for a, b in pairs)
    rows = (
        ("one part, ms a token", f"{one:.1f}"),
        ("three parts in lockstep, ms a token", f"{mixed:.1f}"),
    )
    promises = (
        Promise("three parts beside one, ratio", ratio, "<= 3.5", ratio <= 3.5),
        Promise("error of mixed chances", error, "<= 0.001", error <= 1e-3),
    )
    return Figures("Distributions mixed in lockstep", ("what", "value"), rows, promises)
