"""Who sends what and when: the workloads that this field compares itself by."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from tools.simulate.engine import Done, Job


@dataclasses.dataclass(frozen=True)
class Workload:
    """How much of what. ``rate`` is requests a second, all departments together."""

    requests: int = 10_000
    adapters: int = 100
    departments: int = 4
    rate: float = 2.0
    #: Tokens of prompt and answer are uniform between these.
    shortest: int = 8
    longest: int = 512
    #: Coefficient of variation of the gaps between arrivals; 1 is Poisson.
    cv: float = 1.0
    seed: int = 0
    #: Streams that each send their next request when the last has been answered.
    streams: int = 64

    def lengths(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Prompt and answer lengths."""
        return rng.integers(self.shortest, self.longest + 1, size=(self.requests, 2))

    def arrivals(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Arrival times: gaps are Gamma(1/cv², cv²/rate)."""
        shape = 1 / self.cv**2
        times: NDArray[np.float64] = np.cumsum(
            rng.gamma(shape, 1 / (shape * self.rate), self.requests)
        )
        return times


#: A workload's jobs by time, and what follows when one has ended.
Traffic = tuple[Iterator[Job], Callable[[Done], Job | None]]


def _open(work: Workload, adapters: NDArray[np.int64], rng: np.random.Generator) -> Traffic:
    """Requests that come whether or not the last have been answered."""
    lengths, times = work.lengths(rng), work.arrivals(rng)
    jobs = (
        Job(at, f"d{adapter % work.departments}", adapter, tokens, output)
        for at, adapter, (tokens, output) in zip(
            times.tolist(), adapters.tolist(), lengths.tolist(), strict=True
        )
    )
    return jobs, lambda done: None


def slora(work: Workload, power: float = 0.1) -> Traffic:
    """S-LoRA's: adapter ``int(power(a)·n)``; a = 1 would be uniform."""
    rng = np.random.default_rng(work.seed)
    chosen = (rng.power(power, work.requests) * work.adapters).astype(np.int64)
    return _open(work, chosen, rng)


def zipf(work: Workload, exponent: float = 1.0) -> Traffic:
    """Zipf over the adapters: with 100 of them the first gets 19 % of the requests."""
    rng = np.random.default_rng(work.seed)
    weights = 1 / np.arange(1, work.adapters + 1) ** exponent
    chosen = rng.choice(work.adapters, work.requests, p=weights / weights.sum())
    return _open(work, chosen.astype(np.int64), rng)


def vtc(work: Workload) -> Traffic:
    """The fairness paper's: two departments at a fifth and four fifths of ``rate``.

    The first is on for 60 s and off for 60 s. Each has an adapter of its own.
    """

    def of(name: str, adapter: int, rate: float, count: int) -> list[Job]:
        times = np.arange(count) / rate
        tokens = (work.shortest + work.longest) // 2
        return [Job(float(at), name, adapter, tokens, tokens) for at in times]

    slow = of("d0", 0, work.rate / 5, work.requests // 5)
    slow = [dataclasses.replace(job, at_s=job.at_s + job.at_s // 60 * 60) for job in slow]
    fast = of("d1", 1, work.rate * 4 / 5, work.requests - len(slow))
    return iter(sorted([*slow, *fast], key=lambda job: job.at_s)), lambda done: None


def thrash(work: Workload) -> Traffic:
    """Closed loops, streams over adapters in turn: with more adapters than slots, they thrash."""
    rng = np.random.default_rng(work.seed)
    lengths = work.lengths(rng).tolist()
    left = work.requests - work.streams

    def job(stream: int, number: int, at_s: float) -> Job:
        adapter = stream % work.adapters
        tokens, output = lengths[number % len(lengths)]
        return Job(at_s, f"d{adapter % work.departments}", adapter, tokens, output, stream)

    def again(done: Done) -> Job | None:
        nonlocal left
        if left <= 0:
            return None
        left -= 1
        return job(done.job.stream, left, done.end_s)

    return (job(stream, stream, 0.0) for stream in range(work.streams)), again


WORKLOADS: dict[str, Callable[[Workload], Traffic]] = {
    "slora": slora,
    "zipf": zipf,
    "vtc": vtc,
    "thrash": thrash,
}
