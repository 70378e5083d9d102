"""Keeps a staged copy from being removed just when somebody is about to offer it again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class StagingGuard:
    """Whether adapters are being staged. Thread-safe.

    A staging may find its copy there already; from then until the shelf has it, nothing says that
    the copy is needed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0

    @contextlib.contextmanager
    def staging(self) -> Iterator[None]:
        """For as long as something is staged and put on the shelf."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    def when_idle(self, work: Callable[[], None]) -> bool:
        """Does ``work`` unless something is being staged; whether it did.

        No staging begins meanwhile, so ``work`` has to be short.
        """
        with self._lock:
            if self._under_way:
                return False
            work()
            return True
