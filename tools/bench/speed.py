"""Our server beside raw ``AsyncLLM`` and vLLM's own server: throughput, CPU time, first token.

All three stand ready at once and take turns, so that a drifting machine touches all alike; ratios
are of the runs of one turn. Streamed answers, closed loops; with an adapter shorter ones, because
raw vLLM is slow at them on a CPU.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from tools.bench import contestants
from tools.bench.contestants import Contestant, Load, Outcome
from tools.bench.figures import Figures, Promise
from tools.bench.server import engine_settings, running

_PROMPT = "Tell me what the weather was like in the north of Norway in"
_TOKENS, _TOKENS_OF_ADAPTER = 32, 16
_STREAMS = (1, 8, 16, 32)
#: Student's t, 95 % one-sided, by degrees of freedom: of 2 and of 5 turns.
_T = {1: 6.31, 4: 2.13}

Key = tuple[int, bool, str]


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Takes 5 turns, or 2 if ``quick``, of each load with each contestant."""
    turns = 2 if quick else 5
    lora_id = sorted(json.loads((demo / "markers.json").read_text("utf-8")))[0]
    adapters = (demo / "adapters").resolve()
    arguments = _arguments(demo)
    found: dict[Key, list[Outcome]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running(demo, folder))
        rivals: list[Contestant] = [
            contestants.Ours(server),
            stack.enter_context(contestants.raw(arguments, adapters)),
            stack.enter_context(
                contestants.vllm_serve(arguments, adapters, (lora_id,), folder / "vllm.log")
            ),
        ]
        loads = [
            (
                streams,
                lora,
                Load(
                    streams,
                    _rounds(streams, lora),
                    lora_id if lora else None,
                    _PROMPT,
                    _TOKENS_OF_ADAPTER if lora else _TOKENS,
                ),
            )
            for streams in _STREAMS
            for lora in (False, True)
        ]
        for rival in rivals:  # Every adapter has been loaded, every path been gone once.
            for lora in (None, lora_id):
                await rival.run(Load(4, 1, lora, _PROMPT, 4))
        console = Console(stderr=True)
        order = [load for _ in range(turns) for load in loads]
        for streams, lora, load in track(
            order, "loads", console=console, disable=not console.is_terminal
        ):
            for rival in rivals:
                found[streams, lora, rival.name].append(await rival.run(load))
    return _figures(found, [rival.name for rival in rivals])


def _rounds(streams: int, lora: bool) -> int:
    """So many that a load takes some five seconds on two cores."""
    if lora:
        return 2 if streams == 1 else 1
    return {1: 4, 8: 2, 16: 2}.get(streams, 1)


def _arguments(demo: Path) -> dict[str, Any]:
    """The demo's engine as a user of vLLM would start it."""
    return {**engine_settings(demo), "enable_lora": True}


def _lower(ratios: Sequence[float]) -> float:
    """The lower bound of the geometric mean's 95 % confidence interval."""
    logs = [math.log(ratio) for ratio in ratios]
    count = len(logs)
    spread = statistics.stdev(logs) / math.sqrt(count)
    return math.exp(statistics.fmean(logs) - _T[count - 1] * spread)


def _figures(found: dict[Key, list[Outcome]], names: list[str]) -> Figures:
    rows, promises = [], []
    for streams in _STREAMS:
        for lora in (False, True):
            what = f"{streams} streams, {'one adapter' if lora else 'base'}"
            runs = {name: found[streams, lora, name] for name in names}
            for name, outcomes in runs.items():
                ttfts = [t for outcome in outcomes for t in outcome.ttfts_s]
                rows.append(
                    (
                        f"{what}, {name}",
                        f"{statistics.median(o.rate for o in outcomes):.1f}",
                        f"{statistics.median(o.cpu_ms_per_token for o in outcomes):.2f}",
                        f"{statistics.median(ttfts) * 1e3:.1f}",
                    )
                )
            promises += _promises(what, *(runs[name] for name in names))
    columns = ("load", "tok/s", "CPU ms/token", "TTFT p50 ms")
    return Figures("speed", columns, tuple(rows), tuple(promises))


def _promises(
    what: str, ours: list[Outcome], raw: list[Outcome], serve: list[Outcome]
) -> list[Promise]:
    def ratios(theirs: list[Outcome]) -> list[float]:
        return [a.rate / b.rate for a, b in zip(ours, theirs, strict=True)]

    to_raw, to_serve = _lower(ratios(raw)), statistics.median(ratios(serve))
    cpu = statistics.median(
        a.cpu_ms_per_token / b.cpu_ms_per_token for a, b in zip(ours, raw, strict=True)
    )
    first = [statistics.median(t for o in side for t in o.ttfts_s) * 1e3 for side in (ours, raw)]
    late = first[0] - first[1]
    return [
        Promise(f"{what}: throughput over raw, lower bound", to_raw, "(>= 0.95)", to_raw >= 0.95),
        Promise(f"{what}: throughput over vllm serve", to_serve, "(>= 1)", to_serve >= 1),
        Promise(f"{what}: CPU time per token over raw", cpu, "(<= 1.05)", cpu <= 1.05),
        Promise(f"{what}: TTFT p50 over raw, ms more", late, "(<= 3)", late <= 3),
    ]
