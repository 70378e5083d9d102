"""An adapter is read at an operator's word, as soon as no breaker holds it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from python_backend.adapters.catalog import Entry
from python_backend.adapters.versions import Versions
from python_backend.admin.jobs import Job
from python_backend.engine.base import Engine
from python_backend.errors import BreakerOpen

#: How long a warning of a breaker is waited out, and how often it is asked, seconds.
PATIENCE_S, ASK_S = 60.0, 0.2


async def warm(
    entry: Entry, engine: Engine, versions: Versions, held_back: Callable[[], bool], job: Job
) -> str:
    """Brings a ready adapter as near as it gets without taking a slot from anybody.

    Args:
        held_back: whether nothing is to be read that no request waits for.

    Raises:
        NotFound: it has gone.
        AdapterFailed: it cannot be loaded.
        BreakerOpen: it was held back for ``PATIENCE_S`` seconds.
    """
    asks, job.may_cancel = 0, True
    while held_back():
        job.step = "held back by a breaker"
        asks += 1
        if asks * ASK_S > PATIENCE_S:
            raise BreakerOpen("a breaker is at its warning.", retry_after=round(PATIENCE_S))
        await asyncio.sleep(ASK_S)
    job.step = "reading"
    with versions.lease(entry.lora_id, entry.digest, used=False) as version:
        await engine.preload(version)
    return "warm"
