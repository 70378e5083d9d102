"""What the store has to know of the rest, and of a version."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from python_backend.adapters.weights import WEIGHTS_FILE
from python_backend.engine.base import Version


def weight_bytes(version: Version) -> int:
    """The size of a version's weight file, by which the host cache is counted; 0 without one."""
    try:
        return (version.path / WEIGHTS_FILE).stat().st_size
    except OSError:
        return 0


@dataclasses.dataclass(frozen=True)
class House:
    """What the store has to know of the rest.

    ``leased``: whether anybody uses a version or waits for it; ``pinned``: lora_ids that never go;
    ``ready``: the versions that may be asked for, by lora_id.
    """

    leased: Callable[[int], bool]
    pinned: Callable[[], Iterable[str]]
    ready: Callable[[], dict[str, Version]]
