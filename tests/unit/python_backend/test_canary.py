"""Fingerprints: learnt while the digests are right, compared later, and what a wrong one does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path

import pytest

from python_backend import canary
from python_backend.canary import Canary, differ
from python_backend.engine.base import Job, Step, Version
from python_backend.errors import Unavailable
from python_backend.messages import Sequence

OWN = {"7": -0.1, "8": -2.5, "9": -4.0}
OTHERS = {"7": -3.0, "8": -0.2, "9": -4.0}
ONE, TWO = (Version(f"fin_risk_v{n}", "d" * 64, n, Path("staged")) for n in (1, 2))


class House:
    """An engine whose slots hold what the test says."""

    def __init__(self) -> None:
        self.held = {1: OWN, 2: OTHERS}
        #: What reading an adapter anew puts into its slot.
        self.staged = dict(self.held)
        self.truth: bool | None = True
        self.idle = True
        self.dead = False
        self.known = {1: ONE, 2: TWO}
        self.asked: list[int] = []
        self.judged: list[tuple[int, bool]] = []
        self.evicted: list[int] = []
        self.salts: set[str] = set()
        self.canary = Canary(
            self,
            in_slots=lambda: [2, 1],
            versions=lambda: self.known,
            truth=lambda version: self.truth,
            idle=lambda: self.idle,
            lease=self.lease,
            judged=lambda version, right: self.judged.append((version.int_id, right)),
        )

    @contextlib.contextmanager
    def lease(self, version: Version) -> Iterator[None]:
        yield

    async def encode(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        return (1, 2, 3)

    async def probe(self, job: Job) -> AsyncGenerator[Step, None]:
        if self.dead:
            raise Unavailable("gone")
        assert job.version is not None
        self.asked.append(job.version.int_id)
        self.salts.add(job.cache_salt)
        found = {t: {"logprob": v} for t, v in self.held[job.version.int_id].items()}
        yield Step({0: Sequence(logprobs=json.dumps([found]))}, 3, 0, True)

    async def evict(self, int_ids: Iterable[int]) -> None:
        self.evicted += int_ids
        self.held = dict(self.staged)

    def turns(self, count: int) -> None:
        async def main() -> None:
            for _ in range(count):
                await self.canary.once()

        asyncio.run(main())


def test_the_slots_take_turns_and_two_that_agree_are_learnt() -> None:
    house = House()
    house.turns(4)
    assert (house.asked, house.judged) == ([1, 2, 1, 2], [])
    house.turns(2)
    assert house.judged == [(1, True), (2, True)]
    assert len(house.salts) == 6, "nothing comes from the prefix cache"


def test_another_ones_weights_are_found_and_read_anew() -> None:
    house = House()
    house.turns(4)
    house.held[1] = OTHERS
    house.turns(1)
    assert (house.judged, house.evicted, house.canary.wrong) == ([(1, False)], [1], set())
    # Where that does not help it stays wrong, and is asked before all others.
    house.held[2] = house.staged[2] = OWN
    house.turns(3)
    assert house.canary.wrong == {2}
    assert house.judged[1:] == [(2, False)] * 3
    house.held[2] = house.staged[2] = OTHERS
    house.turns(1)
    assert (house.judged[-1], house.canary.wrong) == ((2, True), set())


def test_nothing_is_learnt_before_the_digests_are_right() -> None:
    house = House()
    house.truth = None
    house.turns(6)
    assert house.asked == []
    house.truth = True
    house.turns(2)
    house.held = {1: OTHERS, 2: OWN}
    house.turns(2)
    house.turns(2)
    assert house.judged == [], "the first two did not agree"
    house.turns(2)
    assert house.judged == [(1, True), (2, True)]


def test_what_was_not_alone_counts_for_nothing() -> None:
    house = House()
    house.turns(4)
    house.held[1], house.idle = OTHERS, False
    house.turns(2)
    assert (house.judged, house.evicted) == ([], [])


def test_reset_and_versions_that_have_gone_are_forgotten() -> None:
    house = House()
    house.turns(4)
    house.held = house.staged = {1: OTHERS, 2: OWN}
    house.turns(2)
    assert house.canary.wrong == {1}
    house.canary.forget()
    house.turns(6)
    assert house.canary.wrong == set()
    house.held[1] = house.staged[1] = OWN
    house.turns(2)
    assert house.canary.wrong == {1}
    del house.known[1]
    house.turns(1)
    assert house.canary.wrong == set()


def test_it_waits_until_nobody_does_and_outlives_errors(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    house.idle, house.dead = False, True
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        house.idle = len(slept) > 3
        if len(slept) == 6:
            house.dead = False
        if len(slept) == 8:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(house.canary.follow(60, sleep))
    assert slept == [60, 0.5, 0.5, 0.5, 60, 60, 60, 60]
    assert house.asked == [1, 2] or house.asked == [2, 1]


def test_a_worker_that_does_not_answer_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    monkeypatch.setattr(canary, "_LIMIT_S", 0.01)
    asked: list[int] = []

    async def hang(job: Job) -> AsyncGenerator[Step, None]:
        asked.append(1)
        await asyncio.Event().wait()
        yield Step({}, 0, 0, True)

    async def sleep(seconds: float) -> None:
        if len(asked) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(house, "probe", hang)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(house.canary.follow(60, sleep))
    assert (len(asked), house.judged, house.canary.wrong) == (2, [], set())


def test_differ() -> None:
    assert not differ(OWN, {"7": -0.12, "8": -2.48, "5": -4.0})
    assert differ(OWN, OTHERS)
    assert differ(OWN, {"5": -0.1, "8": -2.5})
    assert differ(OWN, {"7": float("nan"), "8": -2.5})
