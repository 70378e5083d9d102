"""Many adapters over few slots: what switching costs, with our admission and without.

Closed loops on the real engine: 64 streams over 4 and over 16 adapters in 4 slots, and 16 streams
over 4 and 16; 16 tokens an answer. Cases alternate, and only ratios within a run are compared.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections import defaultdict
from pathlib import Path

from tools.bench.engine_house import EngineHouse, engine_house, jobs
from tools.bench.figures import Figures, Promise, percentile

_TOKENS, _OUTPUT = 16, 16


@dataclasses.dataclass(frozen=True)
class Case:
    """``streams`` callers over ``adapters``; with ``open_door`` the engine decides alone."""

    streams: int
    adapters: int
    open_door: bool

    @property
    def name(self) -> str:
        """For the table."""
        order = "engine alone" if self.open_door else "admission"
        return f"{self.streams} streams, {self.adapters} adapters, {order}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run of a case gave."""

    tokens_per_s: float
    ttfts_s: tuple[float, ...]
    gaps_s: tuple[float, ...]
    switches_per_1000: float


async def _run(house: EngineHouse, case: Case, rounds: int) -> Outcome:
    serving = house.serve(open_door=case.open_door)
    began = time.perf_counter()
    await asyncio.gather(
        *(
            serving.stream(
                itertools.islice(
                    jobs("fin", stream % case.adapters, tokens=_TOKENS, output=_OUTPUT), rounds
                )
            )
            for stream in range(case.streams)
        )
    )
    took = time.perf_counter() - began
    timings = serving.seen
    # Everybody's first request comes at the same moment: no closed loop yet.
    later = [t for t in timings if t.sent_s > began + 0.5] or timings
    return Outcome(
        sum(len(t.times_s) for t in timings) / took,
        tuple(t.ttft_s for t in later),
        tuple(gap for t in timings for gap in t.gaps_s),
        1000 * serving.admission.scheduler.switches / len(timings),
    )


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Runs every case ``rounds`` times in turn."""
    turns, rounds = (1, 4) if quick else (3, 8)
    cases = [
        Case(streams, adapters, open_door)
        for streams in (64, 16)
        for open_door in (False, True)
        for adapters in (4, 16)
    ]
    found: dict[Case, list[Outcome]] = defaultdict(list)
    async with engine_house(demo) as house:
        await _run(house, Case(16, 16, False), 1)  # Every adapter has been loaded once.
        for _ in range(turns):
            for case in cases:
                # As many requests in each case, or nearly.
                found[case].append(await _run(house, case, rounds * (64 // case.streams)))
    return _figures(found)


def _figures(found: dict[Case, list[Outcome]]) -> Figures:
    rows = []
    rate: dict[Case, float] = {}
    tail: dict[Case, float] = {}
    for case, outcomes in found.items():
        ttfts = [ttft for outcome in outcomes for ttft in outcome.ttfts_s]
        gaps = [gap for outcome in outcomes for gap in outcome.gaps_s]
        rate[case] = sum(o.tokens_per_s for o in outcomes) / len(outcomes)
        tail[case] = percentile(ttfts, 99)
        switches = sum(o.switches_per_1000 for o in outcomes) / len(outcomes)
        rows.append(
            (
                case.name,
                f"{rate[case]:.1f}",
                f"{percentile(ttfts, 50):.2f}",
                f"{tail[case]:.2f}",
                f"{percentile(gaps, 50) * 1e3:.0f}",
                str(len(ttfts)),
                "" if case.open_door else f"{switches:.0f}",
            )
        )

    def ratio(of: dict[Case, float], streams: int, *, open_door: bool) -> float:
        few = of[Case(streams, 4, open_door)]
        return of[Case(streams, 16, open_door)] / few if few else 0.0

    ours, theirs = ratio(rate, 64, open_door=False), ratio(rate, 64, open_door=True)
    p99 = ratio(tail, 64, open_door=False)
    alone = ratio(rate, 16, open_door=True)
    narrow, narrow_tail = (
        of[Case(16, 16, False)] / (of[Case(16, 16, True)] or 1) for of in (rate, tail)
    )
    promises = (
        Promise("64 streams, throughput with 16 adapters over 4", ours, "(>= 0.95)", ours >= 0.95),
        Promise("  the engine alone", theirs),
        Promise("64 streams, P99 TTFT with 16 adapters over 4", p99, "(<= 1.3)", p99 <= 1.3),
        Promise("  the engine alone", ratio(tail, 64, open_door=True)),
        Promise("16 streams, throughput with 16 adapters over 4", ratio(rate, 16, open_door=False)),
        Promise("  the engine alone", alone),
        Promise("16 over 16, throughput, ours over alone", narrow, "(>= 0.97)", narrow >= 0.97),
        Promise(
            "16 over 16, P99 TTFT, ours over alone", narrow_tail, "(<= 1)", narrow_tail <= 1.03
        ),
    )
    columns = ("case", "tok/s", "TTFT p50 s", "p99 s", "step p50 ms", "samples", "switches/1000")
    return Figures("switching", columns, tuple(rows), promises)
