"""Asks adapters that lie in slots for their fingerprint now and then, while nobody waits.

The digests of what was read say nothing of what became of it in the slot; this does. A fingerprint
is the log-probabilities of the likeliest next tokens behind one fixed prompt, computed alone. Two
that agree, taken while the digests are right, are an adapter's own; one that differs from it later
is a routing error. Such an adapter is then read anew; while that does not help, the guard hears
that its weights are wrong. Lives on the engine's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from python_backend.engine.base import Job, Step, Version
from python_backend.errors import NotFound, ServingError
from python_backend.messages import EngineRequest

log = logging.getLogger(__name__)

PROMPT = "One, two, three,"
#: The likeliest tokens that are compared, and by how much their log-probabilities may differ. Alone
#: in its step the same adapter gives the same numbers; others differ by whole units.
TOKENS, TOLERANCE = 5, 0.05
_LIMIT_S = 30.0
_LOOK_S = 0.5

#: Log-probability by token.
Fingerprint = Mapping[str, float]


def differ(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether two fingerprints are of different weights.

    The tail of a list may change with a rounding; its head and the values of what both have do not.
    """
    if max(one, key=one.__getitem__) not in other or max(other, key=other.__getitem__) not in one:
        return True
    return any(not abs(one[t] - other[t]) <= TOLERANCE for t in one.keys() & other.keys())


class Probed(Protocol):
    """The engine, as far as it is asked here."""

    async def encode(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        """See ``Engine.encode``."""

    def probe(self, job: Job) -> AsyncGenerator[Step, None]:
        """Runs a job that is nobody's use of its adapter."""

    async def evict(self, int_ids: Iterable[int]) -> None:
        """Takes adapters out of the engine unless somebody uses them."""


class Canary:
    """See the module.

    Args:
        in_slots: ids of the adapters in slots.
        versions: the versions there are, by id.
        truth: whether the digests say that a version's weights are its own; None: not known.
        idle: whether nobody waits or runs.
        lease: keeps a version from being retired.
        judged: hears of each fingerprint that was compared, and whether it was right.
    """

    def __init__(
        self,
        engine: Probed,
        *,
        in_slots: Callable[[], Iterable[int]],
        versions: Callable[[], Mapping[int, Version]],
        truth: Callable[[Version], bool | None],
        idle: Callable[[], bool],
        lease: Callable[[Version], contextlib.AbstractContextManager[object]],
        judged: Callable[[Version, bool], None],
    ) -> None:
        self._engine, self._in_slots, self._versions = engine, in_slots, versions
        self._truth, self._idle, self._lease, self._judged = truth, idle, lease, judged
        #: Ids whose fingerprint was another one's when they were last asked.
        self.wrong: set[int] = set()
        self._own: dict[int, Fingerprint] = {}
        self._first: dict[int, Fingerprint] = {}
        self._turn = itertools.count(1)
        self._asked: dict[int, int] = {}
        self._ids: tuple[int, ...] = ()

    async def follow(self, every_s: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Asks again and again, for ever: one adapter every ``every_s`` seconds at most."""
        while True:
            await sleep(every_s)
            while not self._idle():
                await sleep(_LOOK_S)
            try:
                await self.once()
            except (ServingError, TimeoutError):
                log.info("no fingerprint this time", exc_info=True)
            except Exception:
                log.exception("the fingerprints could not be asked for")

    async def once(self) -> None:
        """One adapter: one that is wrong, else the one in a slot that was not asked for longest."""
        known = self._versions()
        for kept in (self._own, self._first, self._asked):
            for gone in kept.keys() - known.keys():
                del kept[gone]
        self.wrong &= known.keys()
        ids = sorted(
            (self.wrong or set(self._in_slots())) & known.keys(),
            key=lambda int_id: self._asked.get(int_id, 0),
        )
        if ids:
            self._asked[ids[0]] = next(self._turn)
            await self._look_at(known[ids[0]])

    def forget(self) -> None:
        """Trusts all adapters again and learns their fingerprints anew."""
        self.wrong.clear()
        self._own.clear()
        self._first.clear()

    async def _look_at(self, version: Version) -> None:
        int_id = version.int_id
        own = self._own.get(int_id)
        if own is None:
            await self._learn(version)
            return
        found = await self._fingerprint(version)
        if found is None:
            return
        if not differ(own, found):
            self.wrong.discard(int_id)
            self._judged(version, True)
            return
        log.error("%s answers with other weights than its own; it is read anew", version.name)
        self.wrong.add(int_id)
        self._judged(version, False)
        await self._engine.evict([int_id])
        again = await self._fingerprint(version)
        if again is not None and not differ(own, again):
            self.wrong.discard(int_id)

    async def _learn(self, version: Version) -> None:
        if self._truth(version) is not True:
            return
        found = await self._fingerprint(version)
        if found is None or self._truth(version) is not True:
            return
        before = self._first.pop(version.int_id, None)
        if before is not None and not differ(before, found):
            self._own[version.int_id] = found
        else:
            self._first[version.int_id] = found

    async def _fingerprint(self, version: Version) -> Fingerprint | None:
        """None where it was not taken alone, or could not be."""
        if not self._ids:
            self._ids = await self._engine.encode(PROMPT, special_tokens=True)
        sampling = {"max_tokens": 1, "temperature": 0.0, "logprobs": TOKENS}
        name = f"canary-{version.int_id}-{next(self._turn)}"
        # A salt of its own: nothing of an earlier answer is taken from the prefix cache.
        job = Job(name, self._ids, EngineRequest(sampling), version, name)
        found: Fingerprint | None = None
        with contextlib.suppress(NotFound), self._lease(version):
            async with (
                asyncio.timeout(_LIMIT_S),
                contextlib.aclosing(self._engine.probe(job)) as steps,
            ):
                async for step in steps:
                    found = _fingerprint_of(step)
        return found if self._idle() else None


def _fingerprint_of(step: Step) -> Fingerprint:
    part = step.sequences[0]
    if part.logprobs is None:
        return {part.text: 0.0}
    first: dict[str, dict[str, float]] = json.loads(part.logprobs)[0]
    return {token: value["logprob"] for token, value in first.items()}
