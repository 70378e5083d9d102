"""What adapters cost on a CPU: tokens a second beside the base model, and a long prompt's time.

On the real engine with adapters of the largest rank on every projection of every layer. Base and
adapters alternate within one run; each number of slots is an engine of its own.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from python_backend.engine.base import Version
from tools.bench.adapter_house import AdapterHouse, adapter_house, large_adapter
from tools.bench.figures import Figures, Promise

_STREAMS, _TOKENS, _RANK = 16, 48, 16
_PROMPT = 500
#: (slots, adapters) → least throughput over base that is promised; None: only shown.
_DECODE: dict[tuple[int, int], float | None] = {(4, 1): 0.80, (4, 4): None, (16, 16): 0.70}
_PREFILL_BOUND = 1.5

#: Ratios of pairs, and the medians of both sides.
Pairs = list[tuple[float, float]]


async def _rate(house: AdapterHouse, versions: Sequence[Version | None]) -> float:
    """Tokens a second of 16 streams, the adapters in turn."""

    async def stream(number: int) -> None:
        job = house.job(versions[number % len(versions)], _TOKENS)
        async for _ in house.engine.generate(job):
            pass

    began = time.perf_counter()
    await asyncio.gather(*map(stream, range(_STREAMS)))
    return _STREAMS * _TOKENS / (time.perf_counter() - began)


async def _prefill_ms(house: AdapterHouse, version: Version | None) -> float:
    """Milliseconds until a prompt of 500 tokens has its first, nothing else running."""
    began = time.perf_counter()
    async for _ in house.engine.generate(house.job(version, 1, _PROMPT)):
        pass
    return 1e3 * (time.perf_counter() - began)


async def _with_slots(
    demo: Path, slots: int, turns: int, decode: dict[tuple[int, int], Pairs], prefill: Pairs
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with adapter_house(demo, folder, max_loras=slots, max_lora_rank=_RANK) as house:
            large_adapter(folder / "wide", house.info, _RANK)
            versions = [house.version(folder / "wide") for _ in range(slots)]
            for version in versions:
                await house.ttft_s(version)
            cases = [adapters for of, adapters in _DECODE if of == slots]
            for turn in range(turns + 1):  # The first one warms up.
                for adapters in cases:
                    pair = (await _rate(house, [None]), await _rate(house, versions[:adapters]))
                    decode[slots, adapters] += [pair] if turn else []
                if slots == min(of for of, _ in _DECODE):
                    for _ in range(3):
                        times = (
                            await _prefill_ms(house, None),
                            await _prefill_ms(house, versions[0]),
                        )
                        prefill += [times] if turn else []


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Measures with few slots, then with many."""
    decode: dict[tuple[int, int], Pairs] = defaultdict(list)
    prefill: Pairs = []
    for slots in sorted({slots for slots, _ in _DECODE}):
        await _with_slots(demo, slots, 3 if quick else 9, decode, prefill)
    return figures(decode, prefill)


def figures(decode: dict[tuple[int, int], Pairs], prefill: Pairs) -> Figures:
    """Pairs are (base, adapters): tokens a second, or milliseconds of a prompt."""
    rows, promises = [], []
    for (slots, adapters), pairs in decode.items():
        what = f"{_STREAMS} streams, {adapters} adapters in {slots} slots"
        rows.append((f"{what}, tokens/s", *_row(pairs)))
        ratio, least = _ratio(pairs), _DECODE[slots, adapters]
        wanted = "" if least is None else f"(>= {least:.2f})"
        held = None if least is None else ratio >= least
        promises.append(Promise(f"{what}, throughput over base", ratio, wanted, held))
    rows.append((f"a prompt of {_PROMPT} tokens, ms", *_row(prefill)))
    ratio = _ratio(prefill)
    text = f"a prompt of {_PROMPT} tokens, time over base"
    promises.append(Promise(text, ratio, f"(<= {_PREFILL_BOUND})", ratio <= _PREFILL_BOUND))
    columns = ("case", "base", "adapters", "least ratio", "largest ratio", "pairs")
    return Figures("kernels", columns, tuple(rows), tuple(promises))


def _ratio(pairs: Pairs) -> float:
    return statistics.median(adapted / base for base, adapted in pairs)


def _row(pairs: Pairs) -> tuple[str, ...]:
    base, adapted = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [b / a for a, b in pairs]
    least, largest = min(ratios), max(ratios)
    return f"{base:.1f}", f"{adapted:.1f}", f"{least:.2f}", f"{largest:.2f}", str(len(pairs))
