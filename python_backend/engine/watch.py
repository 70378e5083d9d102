"""What the engine notices about itself: failures inside a step, and a poisoned KV cache."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from python_backend import files

log = logging.getLogger(__name__)

_COUNTER = struct.Struct("<Q")
#: Workers that a flag has room for.
_MAX_WORKERS = 512


class FailureFlag:
    """Counts failures inside the step, one counter per worker, in a file both sides map.

    A call into a worker waits for its step; this costs a memory read, so the front end can look
    before every response. A worker counts before its step's output leaves it, so no output of a
    failed adapter can overtake the flag.
    """

    def __init__(self, path: Path) -> None:
        self._map = files.mapped(path, _COUNTER.size * _MAX_WORKERS)

    def mark(self, worker: int) -> None:
        """Counts one failure of worker number ``worker``."""
        offset = _COUNTER.size * (worker % _MAX_WORKERS)
        (count,) = _COUNTER.unpack_from(self._map, offset)
        _COUNTER.pack_into(self._map, offset, count + 1)

    def total(self) -> bytes:
        """All counters; differs from an earlier value if and only if something failed since."""
        return bytes(self._map)


class StepWatch:
    """A vLLM stat logger that tells of every step, and of requests whose logits held NaN.

    vLLM counts these where ``VLLM_COMPUTE_NANS_IN_LOGITS`` is set. A raise in a stat logger would
    end the engine's front end, so nothing here raises.

    Args:
        stepped: called on the event loop when a step has ended.
        corrupted: called there with the uids of requests that ended corrupted.
    """

    def __init__(self, stepped: Callable[[], None], corrupted: Callable[[set[str]], None]) -> None:
        self._stepped, self._corrupted = stepped, corrupted

    def __call__(self, vllm_config: Any, engine_index: int = 0) -> StepWatch:
        """The factory call that vLLM makes for each engine."""
        return self

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Looks at the requests that ended in this step."""
        try:
            self._stepped()
            if iteration_stats is None or not iteration_stats.finished_requests:
                return
            uids = {
                str(request.request_id)
                for request in iteration_stats.finished_requests
                if request.is_corrupted
            }
            if uids:
                self._corrupted(uids)
        except Exception:
            log.exception("the watch over the engine's steps failed")

    def log_engine_initialized(self) -> None:
        """Part of vLLM's interface."""

    def log(self) -> None:
        """Part of vLLM's interface."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Part of vLLM's interface."""
