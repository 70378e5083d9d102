"""What NVIDIA's management library says of the machine's GPUs, where both are there.

The package nvidia-ml-py (module ``pynvml``) is not one of ours: where it is missing, or no driver
is, ``available`` is False and ``reason`` says why.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import math
from collections.abc import Callable
from typing import Any

from python_backend.lora_metrics import NVML_AVAILABLE, NVML_PCIE, NVML_UTILIZATION
from python_backend.metrics import Update

log = logging.getLogger(__name__)

#: NVML counts PCIe in KB of 1024 bytes a second.
_KB = 1024


@dataclasses.dataclass(frozen=True)
class Figures:
    """One GPU: shares of the last sampling period, PCIe in bytes a second; NaN where not told.

    ``sm`` is the share of time in which a kernel ran, ``memory`` in which device memory was read or
    written (NVML's ``nvmlUtilization_t``).
    """

    device: int
    sm: float = math.nan
    memory: float = math.nan
    received: float = math.nan
    sent: float = math.nan

    def updates(self) -> list[Update]:
        """As metrics."""
        device = ("device", str(self.device))
        values = [
            (NVML_UTILIZATION, ("kind", "sm"), self.sm),
            (NVML_UTILIZATION, ("kind", "memory"), self.memory),
            (NVML_PCIE, ("direction", "rx"), self.received),
            (NVML_PCIE, ("direction", "tx"), self.sent),
        ]
        return [
            Update(name, (value,), (device, label))
            for name, label, value in values
            if not math.isnan(value)
        ]


def _pynvml() -> Any:
    return importlib.import_module("pynvml")


class Nvml:
    """Blocks for some 20 ms per GPU and sample: for a thread.

    Args:
        load: gives the module ``pynvml``.
    """

    def __init__(self, load: Callable[[], Any] = _pynvml) -> None:
        self._nvml: Any = None
        self.reason = ""
        try:
            self._nvml = load()
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except ImportError:
            self._off("the package nvidia-ml-py is not installed")
        except Exception as error:
            self._off(f"NVML: {type(error).__name__}: {error}")

    def _off(self, reason: str) -> None:
        self._nvml, self._handles, self.reason = None, [], reason
        log.info("figures of GPUs are not available: %s", reason)

    @property
    def available(self) -> bool:
        """Whether there is anything to be asked."""
        return bool(self._handles)

    def sample(self) -> list[Figures]:
        """One for each GPU; none where they are not available."""
        return [self._figures(index, handle) for index, handle in enumerate(self._handles)]

    def updates(self) -> list[Update]:
        """A sample as metrics, beginning with whether there is one."""
        found = [Update(NVML_AVAILABLE, (float(self.available),))]
        for figures in self.sample():
            found += figures.updates()
        return found

    def _figures(self, index: int, handle: Any) -> Figures:
        nvml = self._nvml
        sm = memory = received = sent = math.nan
        # Each by itself: with MIG, or through a hypervisor, some are not supported.
        try:
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            sm, memory = rates.gpu / 100, rates.memory / 100
        except nvml.NVMLError:
            log.debug("GPU %d tells no utilization", index)
        try:
            received, sent = (
                _KB * float(nvml.nvmlDeviceGetPcieThroughput(handle, counter))
                for counter in (nvml.NVML_PCIE_UTIL_RX_BYTES, nvml.NVML_PCIE_UTIL_TX_BYTES)
            )
        except nvml.NVMLError:
            log.debug("GPU %d tells no PCIe throughput", index)
        return Figures(index, sm, memory, received, sent)
