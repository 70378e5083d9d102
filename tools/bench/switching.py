"""Many adapters over few slots: what switching costs, with our admission and without.

Closed loops on the real engine: 64 streams over 4 and over 16 adapters in 4 slots, and 16 streams
over 4 and 16; 16 tokens an answer. Streams go on all the while, and what is measured lies in a
window behind their start: streams that ended after so many requests each would end with a batch
that empties, which weighs on one case more than on another. Cases alternate, each turn in another
order, and only ratios within a run are compared.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

from tools.bench.engine_house import EngineHouse, engine_house, jobs
from tools.bench.figures import Figures, Promise, percentile

_TOKENS, _OUTPUT = 16, 16
#: Until the first requests of all streams, which come at one moment, have gone; seconds.
_RAMP_S = 5.0
#: A first token that has not come so long after the window counts as coming then, seconds.
_GIVE_UP_S = 40.0


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


async def _run(house: EngineHouse, case: Case, seconds: float) -> Outcome:
    serving = house.serve(open_door=case.open_door)
    streams = [
        jobs("fin", stream % case.adapters, tokens=_TOKENS, output=_OUTPUT)
        for stream in range(case.streams)
    ]
    scheduler = serving.admission.scheduler
    async with serving.crowd(streams):
        await asyncio.sleep(_RAMP_S)
        began, switches, admitted = time.perf_counter(), scheduler.switches, scheduler.admissions
        await asyncio.sleep(seconds)
        ended = time.perf_counter()
        switches, admitted = scheduler.switches - switches, scheduler.admissions - admitted
        # Who was sent in the window is waited for: else the longest waits would not count.
        sent = [timing for timing in serving.seen if began <= timing.sent_s < ended]
        while not all(t.times_s for t in sent) and time.perf_counter() < ended + _GIVE_UP_S:
            await asyncio.sleep(0.05)
        given_up = time.perf_counter()
    inside = [at for timing in serving.seen for at in timing.times_s if began <= at < ended]
    return Outcome(
        len(inside) / (ended - began),
        tuple(t.ttft_s if t.times_s else given_up - t.sent_s for t in sent),
        tuple(gap for timing in sent for gap in timing.gaps_s),
        1000 * switches / max(1, admitted),
    )


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Runs every case for a window in turn."""
    turns, seconds = (1, 12.0) if quick else (3, 14.0)
    cases = [
        Case(streams, adapters, open_door)
        for streams in (64, 16)
        for open_door in (False, True)
        for adapters in (4, 16)
    ]
    found: dict[Case, list[Outcome]] = {case: [] for case in cases}
    async with engine_house(demo) as house:
        await _run(house, Case(16, 16, False), 4.0)  # Every adapter has been loaded once.
        for turn in range(turns):
            for case in cases if turn % 2 == 0 else reversed(cases):
                found[case].append(await _run(house, case, seconds))
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
