"""What every kind of remote source offers to whoever fetches from it."""

from __future__ import annotations

import dataclasses
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class Stamp:
    """What tells two versions of a file apart; ``tag`` is empty where the server says nothing."""

    size: int | None
    tag: str


class Stream(Protocol):
    """A file that is being read; ``offset`` is where it began, which may be 0 all the same."""

    offset: int
    stamp: Stamp

    def read(self) -> bytes:
        """The next bytes; none at the end. Raises ``SourceFailed`` or ``Interrupted``."""

    def close(self) -> None:
        """Lets go of the connection."""


class Source(Protocol):
    """A remote folder."""

    def open(self, name: str, offset: int, seen: Stamp | None) -> Stream:
        """The file from ``offset`` on, or from its start where it cannot be continued.

        Raises:
            SourceFailed, Interrupted: it cannot be read, or is another than ``seen``.
        """

    def stamp(self, name: str) -> Stamp:
        """What the file is now. Raises as ``open``."""

    def close(self) -> None:
        """Lets go of everything."""
