"""Reads what waits for its turn before the turn comes.

Admission says which adapters get a slot next; those that the host cache lacks are brought there, so
that packing and one activation are left when the slot is free. It displaces nobody who waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from python_backend.adapters.store import PRELOADS, Store
from python_backend.adapters.tending import Lease
from python_backend.engine.base import Version
from python_backend.errors import NotFound, ServingError

log = logging.getLogger(__name__)

#: After a change in the queue there is a look so much later, seconds: requests come in crowds.
_SOON_S = 0.01


class Ahead:
    """Prepares for a store; lives on the engine's event loop.

    Args:
        upcoming: the versions that get a slot next, soonest first, at most so many.
        lease: held on each version while it is brought.
    """

    def __init__(
        self, store: Store, upcoming: Callable[[int], Iterable[Version]], lease: Lease
    ) -> None:
        self._store, self._upcoming, self._lease = store, upcoming, lease
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Those that could not be brought: their requests are told why when they try.
        self._unfit: set[int] = set()
        self._look_planned: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """The queue has changed; on the loop."""
        if self._look_planned is None:
            loop = asyncio.get_running_loop()
            self._look_planned = loop.call_later(_SOON_S, self._look)

    def stop(self) -> None:
        """Begins nothing more; what is being read is left to itself."""
        if self._look_planned is not None:
            self._look_planned.cancel()
        for task in self._tasks.values():
            task.cancel()

    def _look(self) -> None:
        self._look_planned = None
        hosted = self._store.hosted
        upcoming = list(self._upcoming(PRELOADS))
        self._unfit &= {version.int_id for version in upcoming}
        for version in upcoming:
            int_id = version.int_id
            if int_id not in hosted and int_id not in self._tasks and int_id not in self._unfit:
                task = asyncio.get_running_loop().create_task(self._prepare(version))
                self._tasks[int_id] = task

    async def _prepare(self, version: Version) -> None:
        try:
            with self._lease(version):
                there = await self._store.prepare(version)
        except NotFound:
            return
        except ServingError as error:
            self._unfit.add(version.int_id)
            log.info("%s could not be prepared: %s", version.name, error.message)
        except Exception:
            self._unfit.add(version.int_id)
            log.exception("%s could not be prepared", version.name)
        else:
            if there:
                self.changed()  # There may be more that wait than were looked at.
        finally:
            del self._tasks[version.int_id]
