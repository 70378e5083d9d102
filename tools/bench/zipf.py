"""Many adapters under Zipf(1.0) over few: what it costs to serve a thousand, used or not.

On the real engine with 16 slots and 16 seats, behind our admission and our tiers: 64 closed loops
draw from 16, 100 and 1,000 adapters by turns, the k-th with a chance of 1/k. Prompts and answers
have 8 to 64 tokens, uniformly: S-LoRA's lengths, an eighth as long. Adapters have rank 2 on every
projection, and a folder each. Memory of what is known and idle is taken apart from it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from python_backend.adapters.catalog import Entry
from python_backend.adapters.scan import scan
from python_backend.adapters.store import Store
from python_backend.adapters.versions import Versions
from python_backend.engine.base import EngineInfo
from python_backend.tier_settings import TierSettings
from tools.bench.adapter_house import held, large_adapter, small_adapters
from tools.bench.engine_house import EngineHouse, engine_house
from tools.bench.figures import Figures, Promise, percentile
from tools.simulate.engine import Job

_FEW = 16
#: Adapters → least throughput over few.
_PROMISED = {100: 0.95, 1000: 0.90}
_KNOWN = max(_PROMISED)
_STREAMS, _SLOTS, _LENGTHS, _RANK = 64, 16, (8, 64), 2
_IDLE_BOUND_KB = 100


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one turn over so many adapters gave."""

    tokens_per_s: float
    ttfts_s: tuple[float, ...]
    switches_per_1000: float
    touched: int


def draws(adapters: int, chance: random.Random) -> Iterator[int]:
    """Numbers from 0 on; the k-th (from 1) with a chance of 1/k against the first."""
    weights = [1 / k for k in range(1, adapters + 1)]
    while True:
        yield from chance.choices(range(adapters), weights, k=256)


def folders(root: Path, info: EngineInfo, count: int) -> list[Path]:
    """So many adapters; their weights are one file on the disk, by many names."""
    first = root / "first"
    large_adapter(first, info, _RANK)
    found = [first]
    for number in range(1, count):
        folder = root / f"a{number}"
        folder.mkdir()
        for file in first.iterdir():
            os.link(file, folder / file.name)
        found.append(folder)
    return found


async def _run(house: EngineHouse, store: Store, adapters: int, seed: int, rounds: int) -> Outcome:
    serving = house.serve(engine=store)
    # The same lengths and as many tokens whatever is drawn.
    lengths = random.Random(seed)  # noqa: S311 - a load, no secrets
    numbers = draws(adapters, random.Random(seed))  # noqa: S311

    def jobs() -> Iterator[Job]:
        for _ in range(rounds):
            prompt, answer = lengths.randint(*_LENGTHS), lengths.randint(*_LENGTHS)
            yield Job(0.0, "fin", next(numbers), prompt, answer)

    began = time.perf_counter()
    await asyncio.gather(*(serving.stream(jobs()) for _ in range(_STREAMS)))
    took = time.perf_counter() - began
    seen = serving.seen
    return Outcome(
        sum(len(timing.times_s) for timing in seen) / took,
        tuple(timing.ttft_s for timing in seen),
        1000 * serving.admission.scheduler.switches / len(seen),
        len({timing.job.adapter for timing in seen}),
    )


def _idle_kb(info: EngineInfo, folder: Path) -> float:
    """Kilobytes that one more adapter takes which is known, and nothing else."""
    versions = Versions()
    kept: list[Entry] = []

    def know(count: int) -> None:
        name = str(count)
        small_adapters(folder / name, info, count)
        found = scan(folder / name, folder / f"staged{name}", info.target, 1 << 30)
        for adapter in found.adapters.values():
            if adapter.path is not None:
                kept.append(adapter.entry)
                entry = adapter.entry
                versions.register(entry.lora_id, entry.digest, adapter.path)
        gc.collect()

    know(20)  # What the first ones bring with them is nobody's.
    before, number = held()[0], len(kept)
    know(_KNOWN)
    return (held()[0] - before) / (len(kept) - number) / 1e3


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Turns over few and many adapters, after one over few that does not count."""
    turns, rounds = (2, 3) if quick else (3, 4)
    found: dict[int, list[Outcome]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with engine_house(demo, _KNOWN, _SLOTS) as house:
            idle_kb = _idle_kb(house.info, folder / "known")
            (folder / "used").mkdir()
            paths = folders(folder / "used", house.info, _KNOWN)
            house.adapter = paths.__getitem__
            store = Store(house.engine, TierSettings(), max_count=2 * _KNOWN)
            await _run(house, store, _FEW, 0, 2)
            for turn in range(turns):
                for adapters in (_FEW, *_PROMISED):
                    found[adapters].append(await _run(house, store, adapters, turn, rounds))
    return figures(found, idle_kb)


def figures(found: dict[int, list[Outcome]], idle_kb: float) -> Figures:
    """Ratios are of turns next to each other."""
    rows = []
    for adapters, outcomes in found.items():
        ttfts = [ttft for outcome in outcomes for ttft in outcome.ttfts_s]
        rows.append(
            (
                f"{adapters} adapters",
                f"{statistics.median(o.tokens_per_s for o in outcomes):.1f}",
                f"{percentile(ttfts, 50):.2f}",
                f"{percentile(ttfts, 99):.2f}",
                f"{statistics.median(o.switches_per_1000 for o in outcomes):.0f}",
                f"{max(o.touched for o in outcomes)}",
            )
        )
    promises = []
    for adapters, least in _PROMISED.items():
        pairs = zip(found[adapters], found[_FEW], strict=True)
        ratio = statistics.median(many.tokens_per_s / few.tokens_per_s for many, few in pairs)
        text = f"throughput with {adapters} adapters over {_FEW}"
        promises.append(Promise(text, ratio, f"(>= {least:.2f})", ratio >= least))
    text = "a known, idle adapter, kB"
    promises.append(Promise(text, idle_kb, f"(<= {_IDLE_BOUND_KB})", idle_kb <= _IDLE_BOUND_KB))
    columns = ("case", "tok/s", "TTFT p50 s", "p99 s", "switches/1000", "adapters used")
    return Figures("zipf", columns, tuple(rows), tuple(promises))
