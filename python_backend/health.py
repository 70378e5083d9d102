"""The official backend's health check: a dead engine is noticed at the next request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from python_backend.errors import Unavailable

log = logging.getLogger(__name__)

_RETRY_S = 30


class HealthCheck:
    """Asked once per request. Thread-safe.

    Args:
        enabled: the model's parameter; without it every request goes on to the engine.
        unload: called once, behind the answer to the first request that finds the engine dead.
    """

    def __init__(self, enabled: bool, unload: Callable[[], None]) -> None:
        self._enabled, self._unload = enabled, unload
        self._lock = threading.Lock()
        self._dead = False

    def refusal(self, alive: bool) -> Unavailable | None:
        """What a request is answered with; None where it may go on.

        Once it is answered, and not before, call ``found_dead``: what is unloaded can no longer
        answer.
        """
        if not self._enabled or (alive and not self._dead):
            return None
        return Unavailable("the engine has stopped.", retry_after=_RETRY_S)

    def found_dead(self) -> None:
        """Has the model unloaded, the first time."""
        if not self._enabled:
            return
        with self._lock:
            first, self._dead = not self._dead, True
        if first:
            log.error("[vllm] Engine is not healthy and model will be unloaded")
            self._unload()
