"""Decoding in lockstep over the fake engine, whose chances are known: 1/2, 1/4, 1/8, …"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from python_backend.engine.base import EngineInfo, Job, Step, Version
from python_backend.engine.fake import FakeEngine, FakeSession
from python_backend.errors import Unavailable
from python_backend.fusion.lockstep import Stream, decode
from python_backend.messages import EngineRequest

PROMPT = (7, 8, 9)


class Watched(FakeEngine):
    """A fake engine that remembers its sessions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sessions: list[FakeSession] = []

    @contextlib.asynccontextmanager
    async def session(self, job: Job, candidates: int) -> AsyncIterator[FakeSession]:
        async with super().session(job, candidates) as session:
            self.sessions.append(session)
            yield session


def version(first: int) -> Version:
    """Its likeliest token is ``first``, the next ``first + 1``, …"""
    return Version(f"mark_w{first}_v1", "0" * 64, first, Path("/none"))


def streams(*shares: tuple[int, float], stream: bool = True, **sampling: Any) -> list[Stream]:
    request = EngineRequest({"max_tokens": 4, "temperature": 0.0, **sampling}, stream=stream)
    return [
        Stream(Job(f"u-{n}", PROMPT, request, version(first) if first else None, "salt"), weight)
        for n, (first, weight) in enumerate(shares)
    ]


def known(**info: Any) -> EngineInfo:
    return EngineInfo("fake", "", 64, 2, None, vocabulary=50_000, **info)  # type: ignore[arg-type]


def run(engine: FakeEngine, wanted: list[Stream], **info: Any) -> list[Step]:
    async def collect() -> list[Step]:
        await engine.start()
        async with asyncio.timeout(10):
            return [step async for step in decode(engine, known(**info), wanted, 8)]

    return asyncio.run(collect())


def text(steps: list[Step]) -> str:
    return "".join(step.sequences[0].text for step in steps)


def test_every_part_is_fed_what_was_drawn_from_the_mixture() -> None:
    engine = Watched()
    # 10: 0.6 · 1/2; 20: 0.4 · 1/2; the likeliest of both is 10.
    steps = run(engine, streams((10, 0.6), (20, 0.4)))
    assert text(steps) == " t10 t10 t10 t10"
    assert [session.fed for session in engine.sessions] == [[*PROMPT, 10, 10, 10]] * 2
    assert [step.finished for step in steps] == [False, False, False, True]
    assert steps[-1].sequences[0].finish_reason == "length"
    assert engine.running == set()
    assert text(run(Watched(), streams((10, 0.4), (20, 0.6)))) == " t20 t20 t20 t20"


def test_what_both_find_likely_wins_over_what_one_finds_likeliest() -> None:
    # 11 has 0.5 · 1/4 + 0.5 · 1/2, 10 only 0.5 · 1/2.
    assert text(run(Watched(), streams((10, 0.5), (11, 0.5)))) == " t11" * 4


def test_log_probabilities_are_the_mixtures() -> None:
    steps = run(Watched(), streams((10, 0.6), (12, 0.3), (0, 0.1), logprobs=2, max_tokens=2))
    rest = 2.0**-8 / (50_000 - 8)
    chances = {10: 0.6 * 0.5 + 0.4 * rest, 12: 0.6 * 0.125 + 0.3 * 0.5 + 0.1 * rest}
    for step in steps:
        (row,) = json.loads(step.sequences[0].logprobs or "")
        assert [int(token) for token in row] == [10, 12]
        for token, chance in chances.items():
            assert math.exp(row[str(token)]["logprob"]) == pytest.approx(chance, rel=1e-9)
        assert row["12"] == {**row["12"], "rank": 2, "decoded_token": " t12"}
    total = steps[-1].sequences[0].cumulative_logprob
    assert total == pytest.approx(2 * math.log(chances[10]))


def test_without_streaming_there_is_one_step() -> None:
    (step,) = run(Watched(), streams((10, 1.0), stream=False, max_tokens=3))
    assert (step.sequences[0].text, step.sequences[0].num_tokens) == (" t10 t10 t10", 3)
    assert (step.finished, step.num_input_tokens) == (True, 3)


def test_a_seed_repeats_an_answer() -> None:
    def answer(seed: int) -> str:
        return text(run(Watched(), streams((10, 0.6), (20, 0.4), temperature=1.0, seed=seed)))

    assert answer(5) == answer(5)
    assert len({answer(seed) for seed in range(8)}) > 4


@pytest.mark.parametrize(
    ("sampling", "expected", "reason", "tokens"),
    [
        ({"stop": ["10 t"]}, " t", "stop", 2),
        ({"stop": "10 t", "include_stop_str_in_output": True}, " t10 t", "stop", 2),
        ({"stop_token_ids": [10]}, "", "stop", 1),
        ({"stop": ["never"]}, " t10 t10 t10 t10", "length", 4),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_where_it_stops(
    sampling: dict[str, Any], expected: str, reason: str, tokens: int, stream: bool
) -> None:
    steps = run(Watched(), streams((10, 0.9), (20, 0.1), stream=stream, **sampling))
    assert text(steps) == expected
    assert steps[-1].sequences[0].finish_reason == reason
    assert sum(step.sequences[0].num_tokens for step in steps) == tokens


def test_the_models_own_end_is_heeded_unless_it_is_to_be_ignored() -> None:
    ends = {"stop_ids": frozenset({10})}
    (step,) = run(Watched(), streams((10, 1.0)), **ends)
    assert (step.sequences[0].text, step.sequences[0].finish_reason) == ("", "stop")
    assert text(run(Watched(), streams((10, 1.0), ignore_eos=True), **ends)) == " t10" * 4


def test_a_failure_of_one_part_ends_all() -> None:
    engine = Watched(step_s=0.001)

    async def go() -> None:
        await engine.start()
        with pytest.raises(Unavailable):
            async for _ in decode(engine, known(), streams((10, 0.5), (20, 0.5)), 8):
                engine.error = Unavailable("gone.")

    asyncio.run(go())
    assert (engine.running, engine.counts["session"]) == (set(), 2)


@pytest.mark.parametrize("steps_before", [0, 2])
def test_who_goes_away_leaves_nothing_in_the_engine(steps_before: int) -> None:
    engine = Watched(step_s=0.001)

    async def go() -> None:
        await engine.start()

        async def listen() -> None:
            wanted = streams((10, 0.5), (20, 0.5), max_tokens=1000)
            async with contextlib.aclosing(decode(engine, known(), wanted, 8)) as steps:
                async for _ in steps:
                    pass

        task = asyncio.create_task(listen())
        await asyncio.sleep(0.002 * steps_before)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert engine.running == set()
