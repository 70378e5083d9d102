"""Reads adapters beside the engine's step, so that nobody's tokens wait for a disk.

Lives inside vLLM's worker. vLLM reads an adapter between two steps (`add_lora`) or inside one; here
a thread reads and converts it (on a GPU: into pinned memory, as vLLM's own loader does) and puts it
by. When vLLM then asks for it, it is there: packing and one activation are left for the step.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from python_backend.engine.board import PLACES, Outcome

#: Adapters put by at once: as many as can be read at once, and as many that nobody has fetched.
STASH = 2 * PLACES

#: Reads what a ``LoRARequest`` names into a model of its own, and touches nothing else.
Read = Callable[[Any], Any]


class Prefetcher:
    """Threads that read, and what they have read. Thread-safe.

    Args:
        read: vLLM's own load.
        post: tells the front end of (place, int_id, outcome).
        enter: called first in each thread, for what a thread has of its own (the device).
    """

    def __init__(
        self,
        read: Read,
        post: Callable[[int, int, Outcome], None],
        enter: Callable[[], None] = lambda: None,
    ) -> None:
        self._read, self._post, self._enter = read, post, enter
        self._lock = threading.Lock()
        self._wanted: dict[int, object] = {}
        self._stash: OrderedDict[int, Any] = OrderedDict()
        self._errors: OrderedDict[int, str] = OrderedDict()
        #: How often an adapter was read, here or by vLLM itself.
        self.reads = 0
        #: For tests and benchmarks: each read takes so much longer, seconds.
        self.slow_s = 0.0

    def start(self, requests: tuple[Any, ...], place: int) -> None:
        """Begins to read an adapter and returns at once.

        Args:
            requests: the same adapter in one or more places, the one to be tried first first.
        """
        int_id, token = requests[0].lora_int_id, object()
        with self._lock:
            self._wanted[int_id] = token
            self._errors.pop(int_id, None)
        name = f"lora-read-{int_id}"
        # A daemon: a disk that never answers must not keep the process from ending.
        threading.Thread(
            target=self._run, args=(requests, place, token), name=name, daemon=True
        ).start()

    def load(self, request: Any) -> Any:
        """What vLLM's load gives: from the stash, or else read here and now."""
        model = self.take(request.lora_int_id)
        return model if model is not None else self._counted(request)

    def take(self, int_id: int) -> Any | None:
        """An adapter that was put by, which then is not there any more; None without one."""
        with self._lock:
            return self._stash.pop(int_id, None)

    def forget(self, int_id: int) -> str:
        """Drops an adapter, read or still being read; why its read failed, if it did."""
        with self._lock:
            self._wanted.pop(int_id, None)
            self._stash.pop(int_id, None)
            return self._errors.pop(int_id, "")

    def state(self) -> dict[str, Any]:
        """``reads`` so far, ids in the ``stash``, and ids ``reading``."""
        with self._lock:
            return {"reads": self.reads, "stash": [*self._stash], "reading": [*self._wanted]}

    def _run(self, requests: tuple[Any, ...], place: int, token: object) -> None:
        int_id = requests[0].lora_int_id
        model, error = None, ""
        try:
            self._enter()
            model = self._first(requests)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        with self._lock:
            if self._wanted.get(int_id) is not token:
                return  # Forgotten meanwhile: nobody waits for it.
            del self._wanted[int_id]
            if error:
                _bounded(self._errors, int_id, error)
            else:
                _bounded(self._stash, int_id, model)
        self._post(place, int_id, Outcome.FAILED if error else Outcome.READ)

    def _first(self, requests: tuple[Any, ...]) -> Any:
        *copies, original = requests
        for request in copies:
            try:
                return self._counted(request)
            except Exception:  # noqa: S112 - a copy may go at any time; the original counts
                continue
        return self._counted(original)

    def _counted(self, request: Any) -> Any:
        with self._lock:
            self.reads += 1
        if self.slow_s:
            time.sleep(self.slow_s)
        return self._read(request)


def _bounded(kept: OrderedDict[int, Any], int_id: int, value: Any) -> None:
    kept[int_id] = value
    while len(kept) > STASH:
        kept.popitem(last=False)
