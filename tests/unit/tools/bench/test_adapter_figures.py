"""What `bench kernels` and `bench zipf` make of what they saw."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from tools.bench import kernels, zipf
from tools.bench.figures import Figures


def missed(found: Figures) -> list[str]:
    return [promise.text for promise in found.promises if promise.held is False]


def test_kernels_promise_ratios_of_pairs() -> None:
    good = {(4, 1): [(100.0, 80.0)] * 3, (4, 4): [(100.0, 10.0)], (16, 16): [(50.0, 35.0)] * 3}
    assert missed(kernels.figures(good, [(100.0, 150.0)])) == []
    # A machine that slows down slows both sides of a pair.
    drifting = {**good, (4, 1): [(100.0, 81.0), (50.0, 40.5), (10.0, 8.1)]}
    assert missed(kernels.figures(drifting, [(100.0, 150.0)])) == []
    bad = {**good, (16, 16): [(50.0, 34.0)] * 3}
    assert missed(kernels.figures(bad, [(100.0, 151.0)])) == [
        "16 streams, 16 adapters in 16 slots, throughput over base",
        "a prompt of 500 tokens, time over base",
    ]


def test_draws_follow_zipf() -> None:
    """Of a hundred the first is drawn by 19 %, the first ten by 57 %."""
    count = 50_000
    seen = Counter(itertools.islice(zipf.draws(100, random.Random(1)), count))
    assert seen[0] / count == pytest.approx(0.193, abs=0.01)
    assert sum(seen[k] for k in range(10)) / count == pytest.approx(0.565, abs=0.01)
    assert set(seen) == set(range(100))


def test_zipf_promises_each_number_of_adapters() -> None:
    def turns(rate: float) -> list[zipf.Outcome]:
        return [zipf.Outcome(rate, (0.1,), 5.0, 16)] * 2

    found = {16: turns(100.0), 100: turns(95.0), 1000: turns(89.0)}
    assert missed(zipf.figures(found, 2.2)) == ["throughput with 1000 adapters over 16"]
    assert missed(zipf.figures({**found, 1000: turns(90.0)}, 101.0)) == [
        "a known, idle adapter, kB"
    ]
