"""How the readers inside the workers tell the front end that they are done, without a call."""

from __future__ import annotations

import enum
import struct
from pathlib import Path

from python_backend import files

#: Reads that may be under way at once, each with a place of its own on the board.
PLACES = 4
#: Workers that a board has room for.
_MAX_WORKERS = 512
# Native, so that a cell is written at once and not byte by byte.
_CELL = struct.Struct("@Q")
_SIZE = _CELL.size * PLACES * _MAX_WORKERS


class Outcome(enum.IntEnum):
    """What became of a read."""

    READ = 1
    FAILED = 2


class Board:
    """A cell for each worker and place, in a file that both sides map.

    A call into a worker waits for its step; looking here costs a memory read. A cell holds the
    adapter's id above two bits of outcome: what is left of an earlier read is never taken for this
    one's, since ids are used once.
    """

    def __init__(self, path: Path) -> None:
        self._map = files.mapped(path, _SIZE)

    def clear(self, workers: int, place: int) -> None:
        """Empties a place before it is used: a version may be read again, under the same id."""
        for worker in range(workers):
            _CELL.pack_into(self._map, _offset(worker, place), 0)

    def post(self, worker: int, place: int, int_id: int, outcome: Outcome) -> None:
        """Says what became of reading ``int_id``, for worker number ``worker``."""
        _CELL.pack_into(self._map, _offset(worker, place), int_id << 2 | outcome)

    def outcome(self, workers: int, place: int, int_id: int) -> Outcome | None:
        """What became of it on all of the workers together; None while one still reads."""
        cells = [
            _CELL.unpack_from(self._map, _offset(worker, place))[0] for worker in range(workers)
        ]
        if any(cell >> 2 != int_id for cell in cells):
            return None
        return max(Outcome(cell & 3) for cell in cells)


def _offset(worker: int, place: int) -> int:
    return _CELL.size * (PLACES * (worker % _MAX_WORKERS) + place)
