"""Gives memory back that a worker holds and does not use, in a thread beside its steps."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading

import torch

log = logging.getLogger(__name__)

_busy = threading.Lock()


def begin(device: torch.device) -> threading.Thread | None:
    """Begins in a thread; None while one is at it already."""
    if not _busy.acquire(blocking=False):
        return None
    thread = threading.Thread(target=_run, args=(device,), name="lora-trim", daemon=True)
    thread.start()
    return thread


def _run(device: torch.device) -> None:
    try:
        trim(device)
    except Exception:
        log.exception("memory could not be trimmed")
    finally:
        _busy.release()


def trim(device: torch.device) -> None:
    """Caches of the device's allocator on a GPU; on a CPU, free ends of the heap (glibc)."""
    # The young objects only: a collection of all holds the interpreter, and a step, for long.
    gc.collect(1)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.empty_cache()
        return
    # ctypes lets the step go on meanwhile.
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
