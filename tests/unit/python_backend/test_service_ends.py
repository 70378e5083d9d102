"""Each call ends once, and leaves nothing behind, whatever happens to it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging

import pytest

from python_backend import errors
from tests.unit.python_backend.service_house import PROMPT, House, Notes, Recorder, run, until


def test_cancel_while_running() -> None:
    async def test(house: House) -> None:
        call, signed = house.call(sampling={"max_tokens": 1_000}, stream=True)
        task, recorder = house.begin(call)
        await until(lambda: len(recorder.events) > 2)
        cancelled = await house.handle(house.cancel(signed))
        assert cancelled.events == ["done"]
        await task
        assert recorder.error.code == "cancelled"
        assert house.engine.counts["abort"] == 1

    run(test, step_s=0.001)


def test_cancel_while_the_adapter_loads() -> None:
    async def test(house: House) -> None:
        call, signed = house.call()
        task, recorder = house.begin(call)
        await until(lambda: house.engine.counts["load"] == 1)
        await house.handle(house.cancel(signed))
        await task
        assert recorder.error.code == "cancelled"
        assert house.engine.jobs == []
        # The load itself goes on: somebody else may wait for it.
        async with asyncio.timeout(5):
            while await house.engine.resident() != (1,):
                await asyncio.sleep(0.01)

    run(test, load_s=0.05)


def test_cancel_that_overtakes_its_request() -> None:
    async def test(house: House) -> None:
        call, signed = house.call()
        assert (await house.handle(house.cancel(signed))).events == ["done"]
        assert (await house.handle(call)).error.code == "cancelled"
        assert house.engine.jobs == []

    run(test)


def test_a_call_that_the_health_check_refuses_has_its_end_too() -> None:
    async def test(house: House) -> None:
        sink = house.service._sink = Notes()
        call, signed = house.call()
        recorder = Recorder()
        await house.service.handle(call, recorder, errors.Unavailable("the engine has stopped."))
        assert recorder.error.sentence == "the engine has stopped."
        (end,) = sink.completions
        assert (end.event, end.outcome) == ("completion", "unavailable")
        assert end.ticket == signed
        # Whoever has no ticket hears nothing of the engine.
        stranger = Recorder()
        await house.service.handle(
            dataclasses.replace(call, ticket="x"),
            stranger,
            errors.Unavailable("the engine has stopped."),
        )
        assert stranger.error.code == "unauthenticated"

    run(test)


def test_cancel_after_the_end_changes_nothing() -> None:
    async def test(house: House) -> None:
        call, signed = house.call()
        recorder = await house.handle(call)
        assert (await house.handle(house.cancel(signed))).events == ["done"]
        assert recorder.answer.final

    run(test)


def test_cancel_at_the_last_answer_does_not_end_it_twice() -> None:
    async def test(house: House) -> None:
        call, _ = house.call()
        task, recorder = house.begin(call)
        recorder.on_send = lambda: None if not recorder.ends else bool(task.cancel()) and None
        await asyncio.wait([task])
        assert recorder.answer.final

    run(test)


def test_an_error_after_the_last_answer_does_not_end_it_twice() -> None:
    async def test(house: House) -> None:
        task, recorder = house.begin(house.call()[0])

        def broken() -> None:
            raise OSError

        recorder.on_send = broken
        await task
        assert recorder.answer.final

    run(test)


def test_the_deadline() -> None:
    async def test(house: House) -> None:
        call, _ = house.call(sampling={"max_tokens": 100_000}, deadline_s=0.05)
        assert (await house.handle(call)).error.code == "deadline_exceeded"
        assert house.engine.counts["abort"] == 1
        late, _ = house.call(deadline_s=0)
        assert (await house.handle(late)).error.code == "deadline_exceeded"
        assert len(house.engine.jobs) == 1

    run(test, step_s=0.001)


def test_engine_death() -> None:
    async def test(house: House) -> None:
        calls = [house.begin(house.call(sampling={"max_tokens": 10_000})[0]) for _ in range(3)]
        await until(lambda: len(house.engine.running) == 3)
        house.engine.die()
        await asyncio.gather(*(task for task, _ in calls))
        for _, recorder in calls:
            assert (recorder.error.code, recorder.error.retry_after) == ("unavailable", 30)
        assert (await house.handle(house.call()[0])).error.code == "unavailable"

    run(test, step_s=0.001)


def test_what_is_not_ours_leaves_as_internal(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        house.engine.error = RuntimeError("/some/path in shm region 7")
        error = (await house.handle(house.call()[0])).error
        assert isinstance(error, errors.Internal)
        assert error.message == (
            f"internal: something went wrong on our side (error id {error.error_id})."
        )
        (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert error.error_id in record.getMessage()
        assert record.exc_info is not None
        house.engine.error = None
        assert (await house.handle(house.call()[0])).answer.final

    with caplog.at_level(logging.INFO):
        run(test)


def test_a_responder_that_breaks_stops_the_engine() -> None:
    async def test(house: House) -> None:
        call, _ = house.call(sampling={"max_tokens": 1_000}, stream=True)
        task, recorder = house.begin(call)

        def broken() -> None:
            raise OSError

        recorder.on_send = broken
        await task
        assert recorder.error.code == "internal"
        assert house.engine.counts["abort"] == 1

    run(test)


def test_overloaded() -> None:
    async def test(house: House) -> None:
        call, signed = house.call(sampling={"max_tokens": 10_000})
        task, recorder = house.begin(call)
        await until(lambda: house.admission.under_way == {"fin": 1})
        refused = await house.handle(house.call(early_accept=True)[0])
        assert refused.error.code == "overloaded"
        assert refused.events == [refused.error]
        await house.handle(house.cancel(signed))
        await task
        assert recorder.error.code == "cancelled"

    run(test, limit=1, step_s=0.001)


def test_stop() -> None:
    async def test(house: House) -> None:
        running = [house.begin(house.call(sampling={"max_tokens": 10_000})[0]) for _ in range(3)]
        await until(lambda: len(house.engine.running) == 3)
        await house.service.stop()
        assert [r.error.code for _, r in running] == ["cancelled"] * 3
        assert (await house.handle(house.call()[0])).error.code == "unavailable"
        await house.service.stop()
        await asyncio.gather(*(task for task, _ in running))

    run(test, step_s=0.001)


def test_no_prompt_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(house: House) -> None:
        await house.handle(house.call()[0])
        house.engine.error = RuntimeError("broken")
        await house.handle(house.call()[0])
        house.engine.error = None
        await house.handle(house.call(ticket_changes={"boot_id": "x"})[0])
        call, signed = house.call(sampling={"max_tokens": 10_000})
        task, _ = house.begin(call)
        await until(lambda: len(house.engine.running) == 1)
        await house.handle(house.cancel(signed))
        await task

    with caplog.at_level(logging.DEBUG, logger="python_backend"):
        run(test, step_s=0.001)
    assert caplog.records
    assert "secret" not in caplog.text
    assert json.dumps(PROMPT) not in caplog.text
    assert "[vllm] Cancelling the request" in caplog.text
    assert "[vllm] Successfully cancelled the request" in caplog.text


def test_every_end_is_told_once() -> None:
    notes = Notes()

    async def test(house: House) -> None:
        house.service._sink = notes
        good, signed = house.call()
        await house.handle(good)
        await house.handle(good)  # a replay
        await house.handle(house.cancel(signed))
        late, _ = house.call(deadline_s=-1)
        await house.handle(late)
        notes.refusal = errors.Unavailable("the audit cannot be written.")
        refused, _ = house.call()
        assert (await house.handle(refused)).error.code == "unavailable"

    run(test)
    ok, replay, cancel, late, refused = notes.completions
    assert (ok.event, ok.outcome, ok.output_tokens) == ("completion", "ok", 3)
    assert ok.ticket is not None and ok.ticket.uid == "uid1"
    assert ok.served.startswith("fin_risk_v1@") and ok.finish_reasons == ("length",)
    assert ok.ttft_s is not None and ok.latency_s >= ok.ttft_s
    assert (replay.event, replay.outcome) == ("engine_refusal", "unauthenticated")
    assert replay.reason == "used before"
    assert (cancel.event, cancel.outcome) == ("cancel", "ok")
    assert (late.event, late.outcome) == ("completion", "deadline_exceeded")
    assert (refused.event, refused.outcome) == ("completion", "unavailable")
