"""Trimming runs beside whoever asked, one at a time, and never raises."""

from __future__ import annotations

import threading

import pytest
import torch

from python_backend.engine import trimming

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


def test_on_a_cpu_it_returns_memory() -> None:
    trimming.trim(CPU)


def test_on_a_gpu_it_empties_the_devices_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append("emptied"))
    trimming.trim(GPU)
    assert seen == [GPU, "emptied"]


def test_one_at_a_time_beside_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    go, ran = threading.Event(), []

    def slow(device: torch.device) -> None:
        ran.append(device)
        go.wait(20)
        raise RuntimeError("no")

    monkeypatch.setattr(trimming, "trim", slow)
    first = trimming.begin(CPU)
    assert first is not None and trimming.begin(CPU) is None
    go.set()
    first.join(20)
    again = trimming.begin(CPU)
    assert again is not None, "a failure ends it like any other"
    again.join(20)
    assert ran == [CPU, CPU]
