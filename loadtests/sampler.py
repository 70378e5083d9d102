"""Looks at the server once a second, from a thread of its own: memory, files, threads, metrics."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from loadtests import results
from loadtests.results import Sample
from tools.bench.server import role
from tools.serving import shm
from tools.top.command import look
from tools.top.reading import Page

EVERY_S = 1.0
#: What is kept of the metrics page.
KEPT = frozenset(
    f"lora_{name}"
    for name in (
        "adapters",
        "breaker_refusals_total",
        "breaker_state",
        "breaker_transitions_total",
        "engine_requests",
        "gate_decisions_total",
        "gpu_utilization_ratio",
        "kv_cache_usage_ratio",
        "load_latency_seconds",
        "memory_bytes",
        "memory_fragmentation_ratio",
        "queue_depth",
        "requests_in_engine",
        "requests_total",
        "resident_adapters",
        "route_checks_total",
        "route_error_ratio",
        "switch_rate",
        "switch_time_ratio",
        "switches_total",
        "tier_bytes",
        "tokens_total",
    )
)

#: Labels that Triton adds to every series.
TRITONS = frozenset({"model", "version"})


def kept(page: Page) -> dict[str, float]:
    """The chosen metrics by name, labels folded into it."""
    found = {}
    for sample in page.samples:
        if sample.name in KEPT:
            labels = ",".join(
                f'{key}="{value}"'
                for key, value in sorted(sample.labels.items())
                if key not in TRITONS
            )
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def shm_bytes(pids: Sequence[int]) -> int:
    """What these processes have mapped of /dev/shm; other servers of the machine have theirs."""
    found = 0
    for region in shm.mapped_by(pids):
        for pid in pids:
            # As they see it: a server may have a /dev/shm of its own.
            path = Path("/proc") / str(pid) / "root" / region.relative_to("/")
            with contextlib.suppress(OSError):
                found += path.stat().st_blocks * 512
                break
    return found


def sample(t: float, metrics: str, pid: int | None) -> Sample:
    """One look at a server.

    Args:
        t: seconds since the start of the run.
        metrics: ``host:port`` of its metrics.
        pid: above all its processes; None where they are elsewhere.
    """
    rss: Counter[str] = Counter()
    fds: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    processes: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        processes = psutil.Process(pid).children(recursive=True) if pid is not None else []
    for process in processes:
        with contextlib.suppress(psutil.Error), process.oneshot():
            name = role(process)
            rss[name] += process.memory_info().rss
            fds[name] += process.num_fds()
            threads[name] += process.num_threads()
    page: Page | None = None
    with contextlib.suppress(OSError):
        page = look(metrics)
    return Sample(
        t=round(t, 3),
        rss=dict(rss),
        fds=dict(fds),
        threads=dict(threads),
        shm=shm_bytes([process.pid for process in processes]),
        series=len(page.samples) if page else 0,
        metrics=kept(page) if page else None,
    )


class Sampler:
    """Writes ``samples.jsonl`` while its block runs.

    Args:
        folder: of the results.
        metrics, pid: see ``sample``.
        now: seconds since the start of the run.
        before: a look at the server when nobody had asked it anything; None where there was none.
    """

    def __init__(
        self,
        folder: Path,
        metrics: str,
        pid: int | None,
        now: Callable[[], float],
        before: Sample | None = None,
    ) -> None:
        self._path, self._metrics, self._pid, self._now = folder, metrics, pid, now
        self._before = before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with (self._path / results.SAMPLES).open("w", encoding="utf-8") as file:
            if self._before is not None:
                results.append(file, self._before)
            while not self._stop.is_set():
                began = time.monotonic()
                results.append(file, sample(self._now(), self._metrics, self._pid))
                self._stop.wait(max(0.0, EVERY_S - (time.monotonic() - began)))
