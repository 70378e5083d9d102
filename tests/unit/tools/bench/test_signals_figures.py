"""Ratios of pairs, and what of them is promised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tools.bench.signals import Window, _multiply, bounds, figures


def test_bounds_hold_the_ratio() -> None:
    assert bounds([1.0] * 8) == (1.0, 1.0, 1.0)
    numbers = random.Random(1)
    mean, low, high = bounds([0.98 * numbers.uniform(0.95, 1.05) for _ in range(40)])
    assert low < mean < high
    assert mean == pytest.approx(0.98, abs=0.02)
    assert high - low < 0.03
    # Half and double are as far from each other as from one.
    assert bounds([0.5, 2.0])[0] == pytest.approx(1.0)


def test_each_promise_by_itself() -> None:
    plain, slow = Window(1000, 10.0, 10.0), Window(1000, 12.0, 10.0)
    costly = Window(1000, 10.0, 10.2)

    def missed(on: Window, took: float = 0.01, series: int = 900) -> list[str]:
        found = figures([(on, plain)] * 6, [took] * 20, series, 100)
        return [promise.text.strip() for promise in found.promises if promise.held is False]

    assert missed(plain) == []
    assert missed(slow) == ["its lower bound (95 %)"]
    assert missed(costly) == ["processor time per token, observed over not"]
    assert missed(plain, took=0.06) == ["scrape with 1000 adapters, p99 ms"]
    assert missed(plain, series=2001) == ["series in all"]


def test_copies_have_names_of_their_own(tmp_path: Path) -> None:
    for name in ("fin_risk_v1", "mark_w0001_v1", "mark_w0002_v1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(name)
    _multiply(tmp_path, 10)
    assert len(list(tmp_path.iterdir())) == 10
    copies = sorted(tmp_path.glob("bench_c*"))
    assert copies[0].name == "bench_c0000_v1"
    assert {(c / "adapter_config.json").read_text() for c in copies} == {"mark_w0001_v1"}
