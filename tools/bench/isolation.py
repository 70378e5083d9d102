"""One department's requests while another keeps 48 streams busy; and weights.

On the real engine, in turn: the victim alone, the aggressor alone, both; then both without our
admission; then two departments of weights 3 and 1. Only ratios within a run are compared.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from python_backend.admission import Share
from python_backend.errors import ServingError
from tools.bench.engine_house import EngineHouse, Serving, engine_house, jobs
from tools.bench.figures import Figures, Promise, percentile
from tools.simulate.engine import Job

_AGGRESSORS, _THEIR_ADAPTERS = 48, 4
_TOKENS, _OUTPUT, _VICTIMS_OUTPUT = 16, 32, 4
_VICTIM, _AGGRESSOR = "victim", "aggressor"
#: Until the engine is full, seconds.
_RAMP_S = 8.0
#: A wait that has taken so long counts as that long, seconds.
_GIVE_UP_S = 30.0


class Seen:
    """What was seen in the phases of one kind."""

    def __init__(self) -> None:
        self.ttfts_s: list[float] = []
        self.gaps_s: list[float] = []
        self.tokens: Counter[str] = Counter()
        self.seconds = 0.0

    def rate(self, department: str) -> float:
        """A department's tokens a second."""
        return self.tokens[department] / (self.seconds or 1.0)

    def row(self, name: str) -> tuple[str, ...]:
        """For the table."""
        return (
            name,
            str(len(self.ttfts_s)),
            f"{percentile(self.ttfts_s, 50):.3f}",
            f"{percentile(self.ttfts_s, 99):.3f}",
            f"{self.rate(_VICTIM):.1f}",
            f"{self.rate(_AGGRESSOR):.1f}",
            f"{percentile(self.gaps_s, 50) * 1e3:.0f}",
            f"{percentile(self.gaps_s, 99) * 1e3:.0f}",
        )


def _crowd(busy: bool) -> list[Iterable[Job]]:
    return [
        jobs(_AGGRESSOR, stream % _THEIR_ADAPTERS, tokens=_TOKENS, output=_OUTPUT)
        for stream in range(_AGGRESSORS if busy else 0)
    ]


async def _phase(serving: Serving, seen: Seen, *, victims: int, busy: bool, seconds: float) -> None:
    """``victims`` requests one after the other, or ``seconds`` without any.

    ``seconds`` also ends a phase whose victim waits for ever.
    """
    dice = random.Random(5)  # noqa: S311 - no secret
    first = len(serving.seen)
    async with serving.crowd(_crowd(busy)):
        await asyncio.sleep(_RAMP_S if busy else 0)
        began = time.perf_counter()
        victim = next(iter(jobs(_VICTIM, 99, tokens=_TOKENS, output=_VICTIMS_OUTPUT)))
        asked = 0
        while asked < victims and time.perf_counter() - began < seconds:
            await asyncio.sleep(dice.uniform(0, 0.3))
            asked += 1
            try:
                async with asyncio.timeout(_GIVE_UP_S):
                    seen.ttfts_s.append((await serving.ask(victim)).ttft_s)
            except (TimeoutError, ServingError):
                # vLLM alone never serves an adapter while others keep all slots busy.
                seen.ttfts_s.append(_GIVE_UP_S)
        if not victims:
            await asyncio.sleep(seconds)
        ended = time.perf_counter()
    seen.seconds += ended - began
    for department in (_VICTIM, _AGGRESSOR):
        seen.tokens[department] += serving.tokens(department, began, ended)
    seen.gaps_s += [gap for timing in serving.seen[first:] for gap in timing.gaps_s]


async def _weights(house: EngineHouse, seconds: float) -> float:
    """Service that weights of 3 and 1 give, as a ratio."""
    serving = house.serve(shares={"three": Share(3.0), "one": Share(1.0)})
    streams = [
        jobs(name, adapter, tokens=_TOKENS, output=_OUTPUT)
        for adapter, name in enumerate(("three", "one"))
        for _ in range(24)
    ]
    async with serving.crowd(streams):
        # Counters settle, and both departments' waves spread.
        await asyncio.sleep(_RAMP_S * 2)
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        ended = time.perf_counter()
    return serving.tokens("three", began, ended) / max(1, serving.tokens("one", began, ended))


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Alternates the phases; 300 samples of the victim's each, or 60 if ``quick``."""
    turns, samples = (1, 40) if quick else (3, 100)
    calm, busy, both, open_both = Seen(), Seen(), Seen(), Seen()
    async with engine_house(demo) as house:
        serving = house.serve()
        for adapter in (*range(_THEIR_ADAPTERS), 99):
            await serving.ask(next(iter(jobs(_VICTIM, adapter, tokens=4, output=1))))
        for _ in range(turns):
            await _phase(serving, calm, victims=samples, busy=False, seconds=600)
            await _phase(serving, busy, victims=0, busy=True, seconds=samples / 3)
            await _phase(serving, both, victims=samples, busy=True, seconds=600)
            alone = house.serve(open_door=True)
            await _phase(alone, open_both, victims=samples, busy=True, seconds=samples / 2)
        weights = await _weights(house, 30 if quick else 120)
    return _figures(calm, busy, both, open_both, weights)


def _figures(calm: Seen, busy: Seen, both: Seen, open_both: Seen, weights: float) -> Figures:
    step_s = percentile(both.gaps_s, 50)
    alone_s, contended_s = percentile(calm.ttfts_s, 99), percentile(both.ttfts_s, 99)
    beyond = (contended_s - step_s) / (alone_s or 1)
    # What is left for the aggressor when the victim has had its share.
    left = max(1.0, busy.rate(_AGGRESSOR) - both.rate(_VICTIM))
    kept = both.rate(_AGGRESSOR) / left
    error = abs(weights / 3 - 1)
    promises = (
        Promise(
            "victim's P99 TTFT, contended less one step, over alone",
            beyond,
            "(<= 1.5)",
            beyond <= 1.5,
        ),
        Promise("  contended over alone", contended_s / (alone_s or 1)),
        Promise(
            "  the engine alone: contended over alone, P50 (a wait of 30 s is given up)",
            percentile(open_both.ttfts_s, 50) / (percentile(calm.ttfts_s, 50) or 1),
        ),
        Promise("aggressor's throughput over what it has alone", kept, "(>= 0.9)", kept >= 0.9),
        Promise("weights 3:1 give", weights, "(3 within 5 %)", error <= 0.05),
    )
    columns = (
        "phase",
        "samples",
        "TTFT p50 s",
        "p99 s",
        "victim tok/s",
        "aggressor tok/s",
        "step p50 ms",
        "p99 ms",
    )
    rows = (
        calm.row("victim alone"),
        busy.row("aggressor alone"),
        both.row("both, admission"),
        open_both.row("both, engine alone"),
    )
    return Figures("isolation", columns, rows, promises)
