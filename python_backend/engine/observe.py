"""Counts what vLLM's worker does with adapters, and publishes it. Lives inside the worker.

Nothing here raises into vLLM.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import math
import queue
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from python_backend.adapters.weights import WEIGHTS_FILE
from python_backend.engine import private, record
from python_backend.engine.private import Internals
from python_backend.engine.record import UNKNOWN, Load, RecordFile, WorkerRecord
from python_backend.engine.worker import LoraWorkerExtension

log = logging.getLogger(__name__)

#: How often memory is sampled, seconds.
SAMPLE_S = 5.0
_MAX_DIGESTS = 8192


class ObservedWorkerExtension(LoraWorkerExtension):
    """The worker extension, observed."""

    def lora_install(self, flag_path: str, *paths: str) -> dict[str, Any]:
        """See ``LoraWorkerExtension.lora_install``; the record lies beside the flag."""
        internals = Internals.of(self)
        observer: Observer | None = getattr(self, "_lora_observer", None)
        if observer is None and not internals.missing:
            rank = int(getattr(self, "rank", 0))
            path = record.path_of(Path(flag_path).parent, rank)
            device = getattr(self, "device", None)
            observer = self._lora_observer = Observer(internals, RecordFile(path), device)
            # Before the guard and the reader: they then wrap what is timed.
            observer.wrap()
        found = super().lora_install(flag_path, *paths)
        if observer is not None:
            observer.slot_bytes = int(found["slot_bytes"])
            observer.start()
        return found


class Observer:
    """Counters and digests of one worker. Loads are told from any thread.

    Args:
        device: the worker's, whose memory is sampled.
    """

    def __init__(self, internals: Internals, file: RecordFile, device: Any = None) -> None:
        self._internals, self._file, self._device = internals, file, device
        self._lock = threading.Lock()
        self._loads = self._activations = self._switches = 0
        #: The adapter that each slot held last, by its number.
        self._occupants: dict[int, int] = {}
        self._load_s = self._activation_s = 0.0
        self._recent: deque[Load] = deque(maxlen=record.MAX_LOADS)
        self._activated_last: deque[tuple[int, float]] = deque(maxlen=record.MAX_LOADS)
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._to_hash: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._memory = (math.nan, math.nan, math.nan, math.nan)
        self.slot_bytes = 0

    def wrap(self) -> None:
        """Has vLLM's managers tell of each load and each activation."""
        private.watch_adapters(
            self._internals,
            lambda request, took: self._quietly(lambda: self._loaded(request, took)),
            lambda int_id, before, took: self._quietly(
                lambda: self._activated(int_id, before, took)
            ),
        )

    def start(self) -> None:
        """Begins to hash and to sample, each in a thread; a second call does nothing."""
        if not any(thread.name == "lora-sample" for thread in threading.enumerate()):
            for name, work in (("lora-sample", self._sample), ("lora-hash", self._hash)):
                threading.Thread(target=work, name=name, daemon=True).start()

    def _quietly(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.debug("the worker's record could not be written", exc_info=True)

    def _loaded(self, request: Any, seconds: float) -> None:
        int_id, size = int(request.lora_int_id), 0
        with contextlib.suppress(OSError):
            size = (Path(request.lora_path) / WEIGHTS_FILE).stat().st_size
        with self._lock:
            self._loads += 1
            self._load_s += seconds
            self._recent.append(Load(self._loads, int_id, seconds, size))
            self._digests.pop(int_id, None)
        # Not here: it would take as long as the load itself.
        self._to_hash.put((int_id, str(request.lora_path)))
        self.publish()

    def _activated(self, int_id: int, before: list[int | None], seconds: float) -> None:
        if int_id in before:
            return
        after = self._internals.slots()
        with self._lock:
            self._activations += 1
            self._activation_s += seconds
            self._activated_last.append((self._activations, seconds))
            if int_id in after:
                slot = after.index(int_id)
                # Also where the last one has just been put out of the host's cache, and of its
                # slot with it: to its users it is the same.
                self._switches += self._occupants.get(slot, int_id) != int_id
                self._occupants[slot] = int_id
        self.publish()

    def publish(self) -> None:
        """Writes the record as things are now."""
        with self._lock:
            digests = self._digests
            slots = self._internals.slots()
            self._file.write(
                WorkerRecord(
                    self._loads,
                    self._load_s,
                    self._activations,
                    self._activation_s,
                    self._switches,
                    self.slot_bytes,
                    *self._memory,
                    slots=tuple(s if s is None else (s, digests.get(s, UNKNOWN)) for s in slots),
                    recent=tuple(self._recent),
                    host=tuple(self._internals.host_cache()),
                    recent_activations=tuple(self._activated_last),
                )
            )

    def hash_one(self, int_id: int, folder: str) -> None:
        """Notes the digest of the weights that were read from ``folder``."""
        with contextlib.suppress(OSError), open(Path(folder) / WEIGHTS_FILE, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            with self._lock:
                self._digests[int_id] = digest
                while len(self._digests) > _MAX_DIGESTS:
                    self._digests.popitem(last=False)
            self.publish()

    def _hash(self) -> None:
        while True:
            int_id, folder = self._to_hash.get()
            self._quietly(lambda i=int_id, f=folder: self.hash_one(i, f))  # type: ignore[misc]

    def _sample(self) -> None:
        while True:
            self._quietly(self._sample_once)
            time.sleep(SAMPLE_S)

    def _sample_once(self) -> None:
        self._memory = (heap_fragmentation(), *device_memory(self._device))
        self.publish()


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_fragmentation() -> float:
    """The free share of this process's heap (glibc's ``mallinfo2``); not a number without glibc.

    It reads high in healthy processes, whose heap shrinks late: to be shown, not to be acted on.
    """
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return math.nan
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return info.fordblks / info.arena if info.arena else math.nan


def device_memory(device: Any = None) -> tuple[float, float, float]:
    """Bytes allocated, reserved, and in inactive split blocks; not numbers without a GPU.

    Args:
        device: a thread of its own would otherwise ask the first one.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return math.nan, math.nan, math.nan
    stats = torch.cuda.memory_stats(device)
    keys = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
    allocated, reserved, inactive = (float(stats.get(f"{k}.all.current", math.nan)) for k in keys)
    return allocated, reserved, inactive
