"""Adapters at run time: many known, cold ones arriving, and what stays behind.

On the real engine in process; only figures of one run are compared, and cases alternate.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import aclosing
from pathlib import Path

from python_backend.adapters import shm_tier
from python_backend.adapters.decisions import Decisions
from python_backend.adapters.scan import scan
from python_backend.adapters.shm_tier import ShmTier
from python_backend.adapters.store import Store
from python_backend.adapters.usage import Usage
from python_backend.admin.listing import Residents, rows
from python_backend.engine.base import Version
from python_backend.tier_settings import TierSettings
from tools.bench.adapter_house import (
    AdapterHouse,
    adapter_house,
    available,
    every,
    held,
    small_adapters,
)
from tools.bench.figures import Figures, Promise, percentile

_KNOWN = 1000
#: Time between two arrivals, and what a slow disk adds to a read, seconds.
_PERIOD_S, _SLOW_S = 0.8, 1.5
WARM, COLD, SLOW = "warm", "cold", "cold, slow disk"


def _scan(house: AdapterHouse, folder: Path) -> tuple[float, float]:
    """Seconds to judge and stage all that are known, and to list them (median of 20)."""
    root = folder / "root"
    small_adapters(root, house.info, _KNOWN)
    began = time.perf_counter()
    found = scan(root, folder / "staged", house.info.target, 1 << 30)
    took = time.perf_counter() - began
    entries = [one.entry for one in found.adapters.values() if one.path is not None]
    if len(entries) != _KNOWN:
        raise RuntimeError(f"only {len(entries)} adapters of {_KNOWN} were taken")
    ids = {(entry.lora_id, entry.digest): n for n, entry in enumerate(entries)}
    listed = []
    for _ in range(20):
        began = time.perf_counter()
        json.dumps(rows(entries, [], Decisions(), Usage(), ids, Residents(), began))
        listed.append(time.perf_counter() - began)
    return took, statistics.median(listed)


async def _ttfts(house: AdapterHouse, rounds: int) -> tuple[list[float], list[float]]:
    """Times to the first token, warm and cold by turns, with nothing else running."""
    resident = house.version()
    await house.ttft_s(resident)
    warm, cold = [], []
    for _ in range(rounds):
        warm.append(await house.ttft_s(resident))
        version = house.version()
        cold.append(await house.ttft_s(version))
        await house.engine.unload(version.int_id)
    await house.engine.unload(resident.int_id)
    return warm, cold


async def _gaps(house: AdapterHouse, case: str, arrivals: int) -> list[float]:
    """Times between the tokens of a running stream while requests for adapters arrive."""
    mine, *residents = (house.version() for _ in range(3))
    for version in (mine, *residents):
        await house.ttft_s(version)
    await house.slow_reads(_SLOW_S if case == SLOW else 0.0)
    times: list[float] = []

    async def stream() -> None:
        async with aclosing(house.engine.generate(house.job(mine, 400))) as steps:
            async for _ in steps:
                times.append(time.perf_counter())

    async def arrive(number: int) -> None:
        version = residents[number % 2] if case == WARM else house.version()
        await house.ttft_s(version)
        if case != WARM:
            await house.engine.unload(version.int_id)

    streaming = asyncio.create_task(stream())
    while not times:
        await asyncio.sleep(0.01)
    tasks = []
    async for number in every(_PERIOD_S, arrivals):
        tasks.append(asyncio.create_task(arrive(number)))
    await asyncio.gather(*tasks)
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    await house.slow_reads(0.0)
    for version in (mine, *residents):
        await house.engine.unload(version.int_id)
    return [b - a for a, b in itertools.pairwise(times)]


async def _cycles(house: AdapterHouse, cycles: int) -> dict[str, float]:
    """By how much the last figures exceed those after warm-up, for all that may pile up."""
    with tempfile.TemporaryDirectory(dir=shm_tier.ROOT) as name:
        tier = ShmTier(Path(name))
        tier.open()
        settings = TierSettings(shm_bytes=4 * house.size_bytes)
        store = Store(house.engine, settings, max_count=32, shm=tier)

        async def turn(count: int) -> tuple[int, int, int, int]:
            for _ in range(count):
                version = house.version()
                await house.ttft_s(version, store)
                if not await store.copy(version):
                    raise RuntimeError("no room for an adapter in shared memory; make some")
                await store.unload(version.int_id)
            size = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
            return (*held(), 1 + size, 1 + len(await store.resident()))

        before = await turn(max(10, cycles // 5))
        after = await turn(cycles)
        tier.close()
    names = ("memory", "descriptors", "bytes in /dev/shm", "adapters in the engine")
    return {name: b / a - 1 for name, a, b in zip(names, before, after, strict=True)}


async def _ten(house: AdapterHouse) -> float:
    """The share of available memory that ten adapters in a row take."""
    store = Store(house.engine, TierSettings(), max_count=32)
    before, left = held()[0], available()
    versions: list[Version] = [house.version() for _ in range(10)]
    for version in versions:
        await house.ttft_s(version, store)
    taken = held()[0] - before
    for version in versions:
        await store.unload(version.int_id)
    return taken / left


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Runs everything in turn."""
    turns, arrivals, rounds, cycles = (3, 7, 15, 50) if quick else (5, 40, 100, 500)
    gaps: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with adapter_house(demo, folder) as house:
            scanned_s, listed_s = _scan(house, folder)
            warm, cold = await _ttfts(house, rounds)
            for _ in range(turns):
                for case in (WARM, COLD, SLOW):
                    gaps[case] += await _gaps(house, case, arrivals)
            flat = await _cycles(house, cycles)
            ten = await _ten(house)
            size = house.size_bytes
    return _figures(size, scanned_s, listed_s, warm, cold, gaps, flat, ten)


def _figures(
    size: int,
    scanned_s: float,
    listed_s: float,
    warm: list[float],
    cold: list[float],
    gaps: dict[str, list[float]],
    flat: dict[str, float],
    ten: float,
) -> Figures:
    table = [
        (f"time to first token, {case}", *_row(values))
        for case, values in ((WARM, warm), (COLD, cold))
    ]
    table += [(f"between tokens, {case} arrivals", *_row(values)) for case, values in gaps.items()]
    ttft = statistics.median(cold) / statistics.median(warm)
    promises = [
        Promise(f"scan of {_KNOWN}, s", scanned_s, "(<= 10)", scanned_s <= 10),
        Promise(f"list of {_KNOWN}, s", listed_s, "(<= 0.1)", listed_s <= 0.1),
        Promise(
            f"first token of a cold adapter of {size / 1e6:.0f} MB over a warm one",
            ttft,
            "(<= 2)",
            ttft <= 2,
        ),
    ]
    for case in (COLD, SLOW):
        ratio = percentile(gaps[case], 99) / percentile(gaps[WARM], 99)
        text = f"between tokens, P99, {case} over warm arrivals"
        promises.append(Promise(text, ratio, "(<= 1.1)", ratio <= 1.1))
    for name, growth in flat.items():
        held_ = abs(growth) <= 0.02
        promises.append(Promise(f"add, use, remove: growth of {name}", growth, "(±0.02)", held_))
    promises.append(Promise("ten adapters, of available memory", ten, "(<= 0.01)", ten <= 0.01))
    columns = ("case", "p50 ms", "p99 ms", "max ms", "samples")
    return Figures("adapters", columns, tuple(table), tuple(promises))


def _row(values: list[float]) -> tuple[str, str, str, str]:
    p50, p99 = (f"{percentile(values, percent) * 1e3:.0f}" for percent in (50, 99))
    return p50, p99, f"{max(values, default=0.0) * 1e3:.0f}", str(len(values))
