"""What observation costs: two servers, one that watches its engine and one that does not.

They are loaded in turn, A B B A, by the same closed loops over more adapters than there are slots;
the one that is not loaded idles. The breakers of the first one move and refuse nothing: this load
would open that of the switch rate, and what a ration of switches does is not what watching costs.
Compared are tokens a second, and processor time of all processes of a server per token, pair by
pair. Of two servers with equal settings the one that was started first took 1.7 % more for a token,
nobody knows why; so each is started first for half of the pairs. Before that, a server with a
thousand adapters is scraped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tritonclient.grpc as triton
import yaml
from rich.console import Console

from python_backend.breaker_settings import BreakerSettings
from tools.bench.figures import Figures, Promise, Window, percentile
from tools.bench.server import RunningServer, running, text
from tools.demo.command import make_demo

STREAMS, ADAPTERS, OUTPUT = 16, 8, 16
ADAPTERS_SCRAPED, ADAPTERS_USED = 1000, 250
_SAMPLING = json.dumps(
    {"temperature": 0, "max_tokens": OUTPUT, "min_tokens": OUTPUT, "ignore_eos": True}
)
_ONE = json.dumps({"temperature": 0, "max_tokens": 1})
#: Draws of the bootstrap, and the share of them that lies below the bound.
_DRAWS, _BELOW = 10_000, 0.05


def bounds(ratios: Sequence[float], seed: int = 7) -> tuple[float, float, float]:
    """The geometric mean of ratios, and its one-sided 95 % bounds below and above (bootstrap)."""
    logs = [math.log(ratio) for ratio in ratios]
    numbers = random.Random(seed)  # noqa: S311 - no secret
    means = sorted(statistics.fmean(numbers.choices(logs, k=len(logs))) for _ in range(_DRAWS))
    low, high = means[int(_DRAWS * _BELOW)], means[int(_DRAWS * (1 - _BELOW)) - 1]
    return math.exp(statistics.fmean(logs)), math.exp(low), math.exp(high)


class Load:
    """Closed loops on one server, which go on for as long as the block of ``window`` runs."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self._client = triton.InferenceServerClient(server.grpc)
        self._adapters = sorted(server.markers)

    def ask(self, lora_id: str, sampling: str) -> None:
        """One request, to its end."""
        texts = {
            "text_input": "The capital of France is",
            "credential": self.server.keys["admin"],
            "lora_id": lora_id,
            "sampling_parameters": sampling,
        }
        self._client.infer("lora_infer", [text(*pair) for pair in texts.items()])

    def window(self, seconds: float) -> Window:
        """Loads the server for about so long."""
        end, tokens, lock = time.perf_counter() + seconds, [0], threading.Lock()

        def stream(number: int) -> None:
            while time.perf_counter() < end:
                self.ask(self._adapters[number % ADAPTERS], _SAMPLING)
                with lock:
                    tokens[0] += OUTPUT

        began, before = time.perf_counter(), self.server.cpu_s()
        with ThreadPoolExecutor(STREAMS) as pool:
            list(pool.map(stream, range(STREAMS)))
        took = time.perf_counter() - began
        return Window(tokens[0], took, self.server.cpu_s() - before)

    def use_each(self, lora_ids: Iterable[str]) -> None:
        """One token of each of these adapters."""
        with ThreadPoolExecutor(STREAMS) as pool:
            list(pool.map(lambda lora_id: self.ask(lora_id, _ONE), lora_ids))

    def close(self) -> None:
        """Ends its connections."""
        self._client.close()


@contextlib.contextmanager
def _loaded(demo: Path, folder: Path, config: str) -> Iterator[Load]:
    folder.mkdir()
    with running(demo, folder, config) as server, contextlib.closing(Load(server)) as load:
        yield load


def _compare(demo: Path, folder: Path, pairs: int, seconds: float) -> list[tuple[Window, Window]]:
    """(with, without) for each pair."""
    settings = yaml.safe_load((demo / "serving.yaml").read_text("utf-8"))
    breakers = {signal: {"enforce": False} for signal in BreakerSettings.model_fields}
    for name, more in (
        ("observed", {"breakers": breakers}),
        ("unobserved", {"observation": {"enabled": False}}),
    ):
        body = yaml.safe_dump({**settings, **more})
        (demo / f"{name}.yaml").write_text(body, "utf-8")
    names, found = ("observed", "unobserved"), []
    for turn, started in enumerate((names, names[::-1])):
        with contextlib.ExitStack() as stack:
            loads = {
                name: stack.enter_context(_loaded(demo, folder / f"{name}{turn}", f"{name}.yaml"))
                for name in started
            }
            for load in loads.values():
                load.window(seconds)  # Every adapter has been loaded once.
            for number in range(pairs // 2):
                # The order turns: what drifts with time touches both alike.
                order = names if number % 2 == 0 else names[::-1]
                windows = {name: loads[name].window(seconds) for name in order}
                found.append((windows["observed"], windows["unobserved"]))
    return found


def _scrape(demo: Path, folder: Path, scrapes: int) -> tuple[list[float], int, int]:
    """Seconds of each scrape, series in all, and series of ours."""
    with _loaded(demo, folder / "many", "serving.yaml") as load:
        load.use_each(map(_copy, range(ADAPTERS_USED)))
        time.sleep(2.0)  # Metrics follow their requests.
        url = f"http://{load.server.metrics}/metrics"
        took, lines = _timed(lambda: _get(url), scrapes)
    series = [line for line in lines if line and not line.startswith("#")]
    return took, len(series), sum(line.startswith(("lora_", "vllm:")) for line in series)


def _get(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - this machine
        return str(answer.read().decode()).splitlines()


def _timed(work: Callable[[], list[str]], count: int) -> tuple[list[float], list[str]]:
    took: list[float] = []
    found: list[str] = []
    for _ in range(count):
        began = time.perf_counter()
        found = work()
        took.append(time.perf_counter() - began)
    return took, found


async def measure(demo: Path, *, quick: bool) -> Figures:
    """Runs everything in turn; ``demo`` lends nothing but its place among the commands."""
    return await asyncio.to_thread(_measure, quick)


def _measure(quick: bool) -> Figures:
    pairs, seconds, scrapes = (6, 6.0, 20) if quick else (20, 10.0, 100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make(folder / "thousand", ADAPTERS)
        _multiply(folder / "thousand" / "adapters", ADAPTERS_SCRAPED)
        took, series, ours = _scrape(folder / "thousand", folder, scrapes)
        _make(folder / "few", ADAPTERS)
        compared = _compare(folder / "few", folder, pairs, seconds)
    return figures(compared, took, series, ours)


def _make(demo: Path, markers: int) -> None:
    make_demo(demo, markers, force=False, new_keys=False, console=Console(stderr=True))


def _multiply(adapters: Path, count: int) -> None:
    """Copies of a marker under names of their own, until there are ``count`` adapters."""
    source = min(adapters.glob("mark_*"))
    for number in range(count - sum(1 for _ in adapters.iterdir())):
        shutil.copytree(source, adapters / _copy(number))


def _copy(number: int) -> str:
    return f"bench_c{number:04d}_v1"


def figures(
    compared: Sequence[tuple[Window, Window]], took: Sequence[float], series: int, ours: int
) -> Figures:
    """The table and what was promised."""
    rate, rate_low, _ = bounds([on.rate / off.rate for on, off in compared])
    cpu, _, cpu_high = bounds([on.cpu_ms_per_token / off.cpu_ms_per_token for on, off in compared])
    rows = []
    for title, windows in (
        ("observed", [on for on, _ in compared]),
        ("not observed", [off for _, off in compared]),
    ):
        rates = [window.rate for window in windows]
        costs = [window.cpu_ms_per_token for window in windows]
        rows.append(
            (
                title,
                f"{statistics.median(rates):.1f}",
                f"{statistics.median(costs):.2f}",
                str(len(windows)),
                str(sum(window.tokens for window in windows)),
            )
        )
    scrape = percentile(took, 99) * 1e3
    promises = (
        Promise("throughput, observed over not", rate),
        Promise("  its lower bound (95 %)", rate_low, "(>= 0.95)", rate_low >= 0.95),
        Promise("processor time per token, observed over not", cpu, "(<= 1.01)", cpu <= 1.01),
        Promise("  its upper bound (95 %)", cpu_high),
        Promise(
            f"scrape with {ADAPTERS_SCRAPED} adapters, p99 ms", scrape, "(<= 50)", scrape <= 50
        ),
        Promise("  series in all", series, "(<= 2000)", series <= 2000),
        Promise("  of them ours", ours),
    )
    columns = ("case", "tok/s", "cpu ms/token", "windows", "tokens")
    return Figures("signals", columns, tuple(rows), promises)
