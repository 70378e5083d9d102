"""What a ticket's parts are in the engine, kept while a request needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Protocol

from python_backend.adapters.versions import Versions
from python_backend.engine.base import Version
from python_backend.errors import Unavailable
from python_backend.fusion.expression import base_share
from python_backend.fusion.recipe import is_plain
from python_backend.ticket import Part, Ticket

Entered = Callable[[Version | None], AbstractContextManager[object]]


class Mixtures(Protocol):
    """Whoever makes one adapter of several (see ``fusion.live``)."""

    def lease(
        self, parts: tuple[Part, ...], department: str
    ) -> AbstractAsyncContextManager[Version]:
        """The mixture, kept for the block. Raises ``ServingError``."""


class Leases:
    """Versions and mixtures, by ticket.

    Args:
        mixtures: None where nothing is mixed.
        entered: around the work on a version (see ``Guard.entered``).
    """

    def __init__(
        self, versions: Versions, mixtures: Mixtures | None = None, entered: Entered = nullcontext
    ) -> None:
        self._versions, self._mixtures, self._entered = versions, mixtures, entered

    @asynccontextmanager
    async def of(self, ticket: Ticket) -> AsyncIterator[Version | None]:
        """The version that answers, kept for as long as the block runs; None for the base model.

        Raises:
            NotFound: it, or a part of it, has gone since the gate decided.
            ServingError: a mixture cannot be made, or a breaker keeps the request out.
        """
        async with self._held(ticket.parts, ticket.department) as version:
            with self._entered(version):
                yield version

    @contextmanager
    def each(self, parts: tuple[Part, ...]) -> Iterator[list[tuple[Version | None, float]]]:
        """Every part's own version with its weight, and base with what is left, if anything.

        Raises:
            NotFound: a part has gone since the gate decided.
            ServingError: a breaker keeps the request out.
        """
        with ExitStack() as held:
            found: list[tuple[Version | None, float]] = []
            for part in parts:
                version = held.enter_context(self._versions.lease(part.lora_id, part.digest))
                found.append((version, part.weight))
            rest = base_share((part.lora_id, part.weight) for part in parts)
            if rest > 0:
                found.append((None, rest))
            for used, _ in found:
                held.enter_context(self._entered(used))
            yield found

    @asynccontextmanager
    async def _held(
        self, parts: tuple[Part, ...], department: str
    ) -> AsyncIterator[Version | None]:
        if not parts:
            yield None
        elif is_plain(parts):
            with self._versions.lease(parts[0].lora_id, parts[0].digest) as version:
                yield version
        elif self._mixtures is None:
            raise Unavailable("this engine mixes no adapters.")
        else:
            async with self._mixtures.lease(parts, department) as version:
                yield version
