"""What every engine promises (``engine/base.py``), asked of the fake and of vLLM alike."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from python_backend.engine.base import Step, Version
from python_backend.errors import AdapterFailed, InvalidArgument, Unavailable
from tests.contract.rigs import SLOTS, Rig, again, collect, job, says, text, whole

PROMPT = "The capital of France is"


async def until_idle(rig: Rig) -> None:
    async with asyncio.timeout(10):
        while rig.running():
            await asyncio.sleep(0.01)


def test_what_it_says_of_itself(rig: Rig) -> None:
    assert rig.engine.alive
    assert rig.info.max_loras == SLOTS
    assert rig.info.max_model_len >= 64
    assert rig.info.target.max_rank == 16
    assert rig.info.missing == ()
    assert rig.info.engine_version


def test_encode(rig: Rig) -> None:
    def encode(prompt: str) -> tuple[int, ...]:
        return rig.run(rig.engine.encode(prompt, special_tokens=True))

    ids = encode(PROMPT)
    assert len(ids) == 5
    assert all(isinstance(i, int) and i >= 0 for i in ids)
    assert encode(PROMPT) == ids
    assert encode(PROMPT + " not") != ids
    assert encode("") == ()


def test_base_answers_as_itself(rig: Rig) -> None:
    answer = text(rig, job(rig, PROMPT, None))
    assert answer
    assert says(answer) not in rig.words
    assert text(rig, job(rig, PROMPT, None)) == answer


def test_each_adapter_answers_as_itself(rig: Rig) -> None:
    for _ in range(2):
        for version, word in zip(rig.versions, rig.words, strict=True):
            assert says(text(rig, job(rig, PROMPT, version))) == word


def test_one_step_unless_streamed(rig: Rig) -> None:
    (step,) = rig.run(collect(rig, job(rig, PROMPT, rig.versions[0], max_tokens=5)))
    assert step.finished
    assert step.num_input_tokens == 5
    assert list(step.sequences) == [0]
    only = step.sequences[0]
    assert (only.num_tokens, only.finish_reason) == (5, "length")


def test_joined_deltas_are_the_whole_answer(rig: Rig) -> None:
    for version in (None, rig.versions[1]):
        full = whole(rig.run(collect(rig, job(rig, PROMPT, version))))
        steps = rig.run(collect(rig, job(rig, PROMPT, version, stream=True)))
        assert len(steps) > 1
        streamed = whole(steps)
        assert (streamed.texts, streamed.tokens, streamed.reasons) == (
            full.texts,
            full.tokens,
            full.reasons,
        )


@pytest.mark.parametrize("stream", [False, True])
def test_several_sequences(rig: Rig, stream: bool) -> None:
    sampling = {"n": 2, "temperature": 0.7, "seed": 7, "max_tokens": 6}
    wanted = job(rig, PROMPT, rig.versions[0], stream=stream, **sampling)
    found = whole(rig.run(collect(rig, wanted)))
    assert [says(answer) for answer in found.texts] == [rig.words[0]] * 2
    assert (found.tokens, found.reasons) == ([6, 6], ["length", "length"])


def test_a_stop_string_is_left_out(rig: Rig) -> None:
    full = text(rig, job(rig, PROMPT, rig.versions[0]))
    word = rig.words[0]
    stop = word[1:4]
    found = whole(rig.run(collect(rig, job(rig, PROMPT, rig.versions[0], stop=[stop]))))
    assert found.texts == [full[: full.index(stop)]]
    assert found.reasons == ["stop"]


def test_a_second_load_is_cheap(rig: Rig) -> None:
    version = again(rig.versions[0])
    before = rig.loads()
    for _ in range(3):
        rig.run(rig.engine.load(version))
    assert rig.loads() == before + 1
    assert version.int_id in rig.run(rig.engine.resident())
    assert rig.run(rig.engine.unload(version.int_id)) is True


def test_parallel_loads_share_one(rig: Rig) -> None:
    version = again(rig.versions[0])
    before = rig.loads()

    async def many() -> None:
        # One of those who wait goes away; the load goes on for the others.
        tasks = [asyncio.create_task(rig.engine.load(version)) for _ in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * 4

    rig.run(many())
    assert rig.loads() == before + 1
    assert version.int_id in rig.run(rig.engine.resident())
    assert rig.run(rig.engine.unload(version.int_id)) is True


def test_what_cannot_be_loaded_leaves_nothing(rig: Rig, tmp_path: Path) -> None:
    bad = rig.bad_versions(tmp_path)
    assert len(bad) >= 3
    expected = text(rig, job(rig, PROMPT, rig.versions[0]))
    for version in bad:
        for _ in range(2):
            with pytest.raises(AdapterFailed) as caught:
                rig.run(rig.engine.load(version))
            assert str(version.path) not in caught.value.message
        with pytest.raises(AdapterFailed):
            rig.run(collect(rig, job(rig, PROMPT, version)))
        assert version.int_id not in rig.run(rig.engine.resident())
        assert rig.run(rig.engine.unload(version.int_id)) is False
    assert rig.running() == 0
    # A slot that was half written is nobody's.
    assert text(rig, job(rig, PROMPT, rig.versions[0])) == expected


def test_unload_and_after_it(rig: Rig) -> None:
    version = again(rig.versions[1])
    rig.run(rig.engine.load(version))
    assert rig.run(rig.engine.unload(version.int_id)) is True
    assert version.int_id not in rig.run(rig.engine.resident())
    assert rig.run(rig.engine.unload(version.int_id)) is False
    # It was taken out, not forbidden: a job loads it again, and answers as it.
    steps = rig.run(collect(rig, job(rig, PROMPT, version)))
    word = version.name if rig.words[1] == rig.versions[1].name else rig.words[1]
    assert says(whole(steps).texts[0]) == word
    assert version.int_id in rig.run(rig.engine.resident())
    assert rig.run(rig.engine.unload(version.int_id)) is True


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_the_task_aborts(rig: Rig, stream: bool) -> None:
    wanted = job(rig, PROMPT, rig.versions[0], stream=stream, max_tokens=40)

    async def cancelled() -> None:
        task = asyncio.create_task(collect(rig, wanted))
        async with asyncio.timeout(20):
            while not rig.running():
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_idle(rig)

    rig.run(cancelled())


def test_closing_the_iterator_aborts(rig: Rig) -> None:
    wanted = job(rig, PROMPT, rig.versions[0], stream=True, max_tokens=40)

    async def closed() -> Step:
        async with contextlib.aclosing(rig.engine.generate(wanted)) as steps:
            first = await anext(steps)
            assert rig.running() == 1
        # At once, with no help of the garbage collector.
        assert rig.running() == 0
        return first

    assert rig.run(closed()).finished is False


def test_a_parameter_that_the_engine_refuses(rig: Rig) -> None:
    with pytest.raises(InvalidArgument) as caught:
        rig.run(collect(rig, job(rig, PROMPT, rig.versions[0], temperature=-1.0)))
    assert "temperature" in caught.value.message or "sampling" in caught.value.message
    assert rig.running() == 0
    assert rig.engine.alive


def test_many_jobs_at_once_each_answer_as_themselves(rig: Rig) -> None:
    versions: list[Version | None] = [None, *rig.versions]
    alone = [text(rig, job(rig, PROMPT, version)) for version in versions]
    jobs = [job(rig, PROMPT, versions[number % 3]) for number in range(9)]

    async def together() -> list[list[Step]]:
        return await asyncio.gather(*(collect(rig, one) for one in jobs))

    answers = [whole(steps).texts[0] for steps in rig.run(together())]
    assert answers == alone * 3


def test_stop(rig: Rig) -> None:
    """The last test here: nothing answers after it."""
    rig.run(rig.engine.stop())
    assert not rig.engine.alive
    rig.run(rig.engine.stop())
    for refused in (
        rig.engine.load(again(rig.versions[0])),
        rig.engine.unload(1),
        rig.engine.resident(),
        rig.engine.encode(PROMPT, special_tokens=True),
    ):
        with pytest.raises(Unavailable):
            rig.run(refused)
