"""How many processors there are to keep busy, by affinity and by quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backend.cores import usable_cores


@pytest.fixture(autouse=True)
def _on_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", 8),
        ("400000 100000\n", 4),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("6400000 100000\n", 8),
        ("", 8),
        ("400000\n", 8),
        ("0 0\n", 8),
    ],
)
def test_quota(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_quota_of_version_1(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


def test_no_control_group(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8
