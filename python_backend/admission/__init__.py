"""Who enters the engine. For now a bound on how many are under way; every way out releases.

Pure: no clock, no I/O. Used from one event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from python_backend.errors import Overloaded


class Admission:
    """Counts the requests under way, by department.

    Args:
        limit: most requests under way at once; beyond, ``overloaded``.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.under_way: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Requests under way."""
        return sum(self.under_way.values())

    @contextmanager
    def lease(self, department: str) -> Iterator[None]:
        """A place in the engine for as long as the block runs.

        Raises:
            Overloaded: all places are taken.
        """
        if self.total >= self._limit:
            raise Overloaded("too many requests are under way.", retry_after=1)
        self.under_way[department] = self.under_way.get(department, 0) + 1
        try:
            yield
        finally:
            left = self.under_way[department] - 1
            if left:
                self.under_way[department] = left
            else:
                del self.under_way[department]
