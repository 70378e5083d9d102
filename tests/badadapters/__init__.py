"""A generator of bad adapters (and a few good ones), for unit and server tests alike.

``make(kind, folder)`` writes one and returns the reason code that it must be refused with;
``KINDS`` lists them all.
"""

from __future__ import annotations

from pathlib import Path

from tests.badadapters import content_kinds, file_kinds, registry, shard_kinds  # noqa: F401
from tests.badadapters.file_kinds import BOMB
from tests.badadapters.files import SMOLLM2, Adapter, Array, Shapes, encode, frame, good, target

__all__ = [
    "BOMB", "KINDS", "SMOLLM2", "Adapter", "Array", "Shapes", "encode", "frame", "good", "make",
    "target",
]  # fmt: skip

#: kind → the reason code it must be refused with.
KINDS: dict[str, str] = {kind: code for kind, (code, _) in registry.KINDS.items()}


def make(kind: str, folder: Path, shapes: Shapes = SMOLLM2) -> str:
    """Writes the bad adapter ``kind`` to ``folder``, which does not exist yet.

    Returns:
        The reason code that it must be refused with.
    """
    return registry.make(kind, folder, shapes)
