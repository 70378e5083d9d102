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
class Device:
    """What one GPU is; None where it does not tell.

    ``capability`` is CUDA's compute capability, ``linked`` the other GPUs reached over NVLink in
    one hop (``nvmlDeviceGetP2PStatus``, as vLLM asks it), ``mig`` whether it is cut into parts.
    """

    index: int
    name: str
    capability: tuple[int, int] | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    mig: bool = False
    linked: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Inventory:
    """The machine's GPUs, the driver's version, and the highest CUDA version that it serves.

    ``reason`` says why there are none.
    """

    devices: tuple[Device, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    reason: str = ""


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

    def inventory(self) -> Inventory:
        """What the GPUs are, rather than what they do."""
        if not self.available:
            return Inventory(reason=self.reason or "NVML names no GPU")
        nvml = self._nvml
        cuda = self._told(lambda: nvml.nvmlSystemGetCudaDriverVersion_v2())
        return Inventory(
            tuple(self._device(index, handle) for index, handle in enumerate(self._handles)),
            _text(self._told(lambda: nvml.nvmlSystemGetDriverVersion()) or ""),
            # 1000 times the major version and 10 times the minor one.
            None if cuda is None else (int(cuda) // 1000, int(cuda) % 1000 // 10),
        )

    def _device(self, index: int, handle: Any) -> Device:
        nvml = self._nvml
        capability = self._told(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        memory = self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        mig = self._told(lambda: nvml.nvmlDeviceGetMigMode(handle))
        return Device(
            index,
            _text(self._told(lambda: nvml.nvmlDeviceGetName(handle)) or "unknown"),
            None if capability is None else (int(capability[0]), int(capability[1])),
            None if memory is None else int(memory.total),
            None if memory is None else int(memory.free),
            bool(mig and mig[0]),
            tuple(
                at
                for at, other in enumerate(self._handles)
                if at != index and self._told(lambda: _linked(nvml, handle, other))  # noqa: B023
            ),
        )

    def _told(self, ask: Callable[[], Any]) -> Any:
        """An answer, or None where this GPU or driver does not know the question."""
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError):
            return None

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


def _linked(nvml: Any, one: Any, other: Any) -> bool:
    status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _text(value: str | bytes) -> str:
    # Older bindings return bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
