"""How a version that is no longer offered leaves: drained, out of the engine, off the disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from python_backend.adapters.shelf import Released, Shelf
from python_backend.engine.base import Engine, Version
from python_backend.errors import ServingError

log = logging.getLogger(__name__)

#: How often a version that is still in use is looked at again, seconds.
_LOOK_AGAIN_S = 0.2


async def retire(
    version: Version,
    engine: Engine,
    shelf: Shelf,
    *,
    grace_s: Callable[[], float],
    discard: Callable[[str], None],
) -> None:
    """Waits until nobody can need the version, then frees the engine and the disk of it.

    Args:
        grace_s: how long tickets for it are honoured, seconds from now; asked again and again,
            since an adapter that is removed needs no time for the versions before its last.
        discard: removes the staged copy of a digest.
    """
    began_s = time.monotonic()
    while (left_s := began_s + grace_s() - time.monotonic()) > 0:
        await asyncio.sleep(min(left_s, _LOOK_AGAIN_S))
    while (released := shelf.release(version)) is Released.IN_USE:
        await asyncio.sleep(_LOOK_AGAIN_S)
    if released is Released.ON_OFFER:
        return
    try:
        await engine.unload(version.int_id)
    except ServingError as error:
        log.warning("%s could not be unloaded: %s", version.name, error.message)
    discard(version.digest)
    log.info("%s is retired", version.name)
