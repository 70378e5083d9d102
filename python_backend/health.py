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
        unload: called once, at the first request that finds the engine dead.
    """

    def __init__(self, enabled: bool, unload: Callable[[], None]) -> None:
        self._enabled, self._unload = enabled, unload
        self._lock = threading.Lock()
        self._dead = False

    def check(self, alive: bool, refuse: Callable[[Unavailable], None]) -> bool:
        """Whether a request may go on; if not, ``refuse`` has been called with the answer."""
        if not self._enabled or (alive and not self._dead):
            return True
        # The answer first: what is unloaded can no longer give one.
        refuse(Unavailable("the engine has stopped.", retry_after=_RETRY_S))
        with self._lock:
            first, self._dead = not self._dead, True
        if first:
            log.error("[vllm] Engine is not healthy and model will be unloaded")
            self._unload()
        return False
