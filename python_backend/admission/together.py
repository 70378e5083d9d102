"""Several places that one request needs at the same time.

Requests that each hold some of what the others wait for would wait for ever. So one at a time
gathers its places, whatever department it is of; who waits for its turn holds nothing, and who has
gathered all waits for nobody. What a gathering request holds is not emptied for others meanwhile,
and does not count against its department's share of the slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager

from python_backend.admission.waiting import Admission, Place
from python_backend.errors import InvalidArgument

_MODE = "fusion.mode"


class Together:
    """Gathers places. Lives on the admission's event loop."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._turn = asyncio.Lock()

    def check(self, department: str, adapters: Sequence[int | None]) -> None:
        """Returns if so many can ever be in the engine together.

        Raises:
            InvalidArgument: they cannot.
        """
        scheduler = self._admission.scheduler
        limits = scheduler.limits
        distinct = len({adapter for adapter in adapters if adapter is not None})
        # What is kept for departments with nothing in the engine may be kept as long as it takes.
        if distinct > limits.slots - limits.kept_slots and distinct > 1:
            raise InvalidArgument(_MODE, "distribution needs more slots than this engine has")
        bound = scheduler.department(department).share.concurrency
        if len(adapters) > min(limits.seats, limits.seats if bound is None else bound):
            raise InvalidArgument(
                _MODE, "distribution needs more sequences than you may have in the engine"
            )

    @contextmanager
    def _held(self, name: str, adapter: int) -> Iterator[None]:
        """Around the wait for the others of a request that is in the engine with ``adapter``."""
        scheduler = self._admission.scheduler
        department, held = scheduler.department(name), scheduler.slots.held
        held.add(adapter)
        department.gathering += 1
        try:
            yield
        finally:
            department.gathering -= 1
            held.discard(adapter)

    @asynccontextmanager
    async def places(
        self,
        first: Place,
        adapters: Sequence[int | None],
        tokens: int,
        max_tokens: int,
        left_s: float,
    ) -> AsyncIterator[list[Place]]:
        """A place in the engine for each of ``adapters``, all for as long as the block runs.

        Args:
            first: the request's own place, not entered; it is given back by its owner.
            adapters: the engine's id of each part's adapter; None for base.
            tokens, max_tokens, left_s: of each part, see ``Place.enter``.

        Raises:
            InvalidArgument: they can never be in the engine together.
            Overloaded: as ``Admission.place`` and ``Place.enter``.
        """
        self.check(first.department, adapters)
        began = asyncio.get_running_loop().time()
        with ExitStack() as stack:
            places = [first]
            for _ in adapters[1:]:
                places.append(stack.enter_context(self._admission.place(first.department)))
            async with self._turn:
                with ExitStack() as holding:
                    for place, adapter in zip(places, adapters, strict=True):
                        waited = asyncio.get_running_loop().time() - began
                        await place.enter(adapter, tokens, max_tokens, left_s - waited)
                        # It is in no step before all are there: the next must not wait for one.
                        self._admission.stepped()
                        if adapter is not None:
                            holding.enter_context(self._held(first.department, adapter))
            yield places
