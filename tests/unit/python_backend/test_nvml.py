"""GPUs' figures from what NVML said on a real machine, and where there is none."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from python_backend import lora_metrics as names
from python_backend.nvml import Figures, Nvml


class NotSupported(Exception):
    pass


def library(**more: Any) -> Any:
    """``pynvml`` as far as it is used, with two GPUs."""

    def pcie(handle: int, counter: int) -> int:
        if handle == 1:
            raise NotSupported
        return {1: 2000, 0: 500}[counter]

    body = {
        "NVMLError": NotSupported,
        "NVML_PCIE_UTIL_TX_BYTES": 0,
        "NVML_PCIE_UTIL_RX_BYTES": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=41),
        "nvmlDeviceGetPcieThroughput": pcie,
    }
    return SimpleNamespace(**{**body, **more})


def test_what_each_gpu_tells() -> None:
    nvml = Nvml(library)
    first, second = nvml.sample()
    assert first == Figures(0, 0.97, 0.41, 2000 * 1024, 500 * 1024)
    assert (second.sm, math.isnan(second.received)) == (0.97, True)
    shown = {(u.name, *(v for _, v in u.labels)): u.values for u in nvml.updates()}
    assert shown == {
        (names.NVML_AVAILABLE,): (1.0,),
        (names.NVML_UTILIZATION, "0", "sm"): (0.97,),
        (names.NVML_UTILIZATION, "0", "memory"): (0.41,),
        (names.NVML_PCIE, "0", "rx"): (2000 * 1024,),
        (names.NVML_PCIE, "0", "tx"): (500 * 1024,),
        (names.NVML_UTILIZATION, "1", "sm"): (0.97,),
        (names.NVML_UTILIZATION, "1", "memory"): (0.41,),
    }


def test_not_available_says_why() -> None:
    def none() -> Any:
        raise ModuleNotFoundError("pynvml")

    def driverless() -> Any:
        raise NotSupported("Driver Not Loaded")

    missing, broken = Nvml(none), Nvml(lambda: library(nvmlInit=driverless))
    assert "nvidia-ml-py is not installed" in missing.reason
    assert "Driver Not Loaded" in broken.reason
    for nvml in (missing, broken, Nvml(lambda: library(nvmlDeviceGetCount=lambda: 0))):
        assert not nvml.available
        assert [(u.name, u.values) for u in nvml.updates()] == [(names.NVML_AVAILABLE, (0.0,))]
