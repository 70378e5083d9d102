"""The service behind its queue: who waits, who is refused, and that nothing stays counted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from python_backend.admission import Share
from tests.unit.python_backend.service_house import House, run, until

LONG = {"max_tokens": 10_000}


def of(department: str) -> dict[str, Any]:
    return {"ticket_changes": {"department": department}}


async def fill(house: House, count: int) -> list[Any]:
    """``count`` requests in the engine that do not end by themselves."""
    begun = []
    for _ in range(count):
        call, signed = house.call(sampling=LONG, stream=True)
        begun.append((*house.begin(call), signed))
    await until(lambda: len(house.engine.running) == count)
    return begun


async def end(house: House, begun: list[Any]) -> None:
    for task, _, signed in begun:
        await house.handle(house.cancel(signed))
        await task


def test_the_engine_gets_no_more_than_it_has_seats_for() -> None:
    most = seated = 0

    async def test(house: House) -> None:
        def watch() -> None:
            nonlocal most, seated
            most = max(most, len(house.engine.running))
            seated = max(seated, house.admission.scheduler.in_engine)

        tasks = []
        for _ in range(30):
            task, recorder = house.begin(house.call(stream=True)[0])
            recorder.on_send = watch
            tasks.append(task)
        await asyncio.gather(*tasks)

    run(test, limit=100, seats=4, step_s=0.001)
    assert seated == 4
    # Beside them are those in their last step, whose successors have their seats.
    assert 4 <= most <= 8


def test_cancel_while_queued_is_answered_at_once() -> None:
    async def test(house: House) -> None:
        busy = await fill(house, 2)
        call, signed = house.call(early_accept=True)
        task, recorder = house.begin(call)
        await until(lambda: house.admission.scheduler.queued == 1)
        assert recorder.events == ["accept"]
        await house.handle(house.cancel(signed))
        async with asyncio.timeout(1):
            await task
        assert recorder.error.code == "cancelled"
        assert len(house.engine.jobs) == 2
        assert house.admission.under_way == {"fin": 2}
        await end(house, busy)

    run(test, seats=2, step_s=0.01)


def test_a_deadline_while_queued() -> None:
    async def test(house: House) -> None:
        busy = await fill(house, 1)
        call, _ = house.call(deadline_s=0.05)
        assert (await house.handle(call)).error.code == "deadline_exceeded"
        assert len(house.engine.jobs) == 1
        await end(house, busy)

    run(test, seats=1, step_s=0.01)


def test_another_department_does_not_wait_behind_a_burst() -> None:
    async def test(house: House) -> None:
        burst = [house.begin(house.call(sampling={"max_tokens": 20})[0]) for _ in range(100)]
        await until(lambda: house.admission.scheduler.queued == 98)
        call, _ = house.call(sampling={"max_tokens": 1}, lora=None, **of("svc"))
        await house.handle(call)
        assert sum(task.done() for task, _ in burst) <= 4
        await asyncio.gather(*(task for task, _ in burst))
        assert all(recorder.answer.final for _, recorder in burst)

    run(test, limit=200, seats=2, step_s=0.001)


def test_n_counts_as_n() -> None:
    async def test(house: House) -> None:
        call, _ = house.call(sampling={"max_tokens": 1, "n": 8})
        assert (await house.handle(call)).answer.final
        wide, _ = house.call(sampling={"max_tokens": 1, "n": 128})
        refused = await house.handle(wide)
        assert refused.error.code == "overloaded"
        assert len(house.engine.jobs) == 1

    run(test, limit=10, seats=4)


def test_tokens_per_minute() -> None:
    async def test(house: House) -> None:
        house.admission.set_shares({"fin": Share(tokens_per_minute=100)})
        call, _ = house.call(sampling={"max_tokens": 40})
        assert (await house.handle(call)).answer.final
        # 43 of 100 are used; a prompt of 40 and 20 tokens are too many.
        call, _ = house.call(sampling={"max_tokens": 20}, prompt="word " * 40)
        error = (await house.handle(call)).error
        assert error.code == "overloaded" and error.retry_after is not None
        assert 0 < error.retry_after <= 3
        call, _ = house.call(sampling={"max_tokens": 20})
        assert (await house.handle(call)).answer.final
        assert len(house.engine.jobs) == 2

    run(test)


def test_what_a_department_is_charged() -> None:
    async def test(house: House) -> None:
        fin = house.admission.scheduler.department("fin")
        for stream in (True, False):
            before = fin.counter
            call, _ = house.call(sampling={"max_tokens": 7, "n": 2}, stream=stream)
            await house.handle(call)
            assert fin.counter - before == 3 + 2 * 7 * 2

    run(test)


def test_a_long_prompt_of_one_department_is_not_ahead_of_another() -> None:
    async def test(house: House) -> None:
        order: list[str] = []
        gate = asyncio.Event()
        encode = house.engine.encode

        async def slow(prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
            order.append(prompt.split()[0])
            if prompt.startswith("long"):
                await gate.wait()
            return await encode(prompt, special_tokens=special_tokens)

        house.engine.encode = slow  # type: ignore[method-assign]
        burst = [house.begin(house.call(prompt="long one")[0]) for _ in range(5)]
        await house.handle(house.call(prompt="short", **of("svc"))[0])
        assert sorted(order) == ["long", "short"]
        gate.set()
        await asyncio.gather(*(task for task, _ in burst))

    run(test)


def test_draining() -> None:
    async def test(house: House) -> None:
        short = house.begin(house.call(sampling={"max_tokens": 20})[0])
        queued = house.begin(house.call(sampling={"max_tokens": 5})[0])
        await until(lambda: len(house.engine.running) == 1)
        stopping = asyncio.create_task(house.service.stop(5.0))
        await asyncio.sleep(0)
        assert (await house.handle(house.call()[0])).error.code == "unavailable"
        await stopping
        for task, recorder in (short, queued):
            await task
            assert recorder.answer.final

    run(test, seats=1, step_s=0.001)


def test_draining_has_a_limit() -> None:
    async def test(house: House) -> None:
        busy = await fill(house, 1)
        waiting = house.begin(house.call()[0])
        await until(lambda: house.admission.scheduler.queued == 1)
        async with asyncio.timeout(2):
            await house.service.stop(0.05)
        assert [busy[0][1].error.code, waiting[1].error.code] == ["cancelled"] * 2
        await asyncio.gather(busy[0][0], waiting[0])

    run(test, seats=1, step_s=0.01)


def test_engine_death_empties_the_queue() -> None:
    async def test(house: House) -> None:
        begun = [house.begin(house.call(sampling=LONG)[0]) for _ in range(8)]
        await until(lambda: len(house.engine.running) == 2)
        house.engine.die()
        async with asyncio.timeout(5):
            await asyncio.gather(*(task for task, _ in begun))
        assert {recorder.error.code for _, recorder in begun} == {"unavailable"}

    run(test, seats=2, step_s=0.001)


def test_half_of_two_hundred_leave_at_random_points() -> None:
    """C23: in the queue, while the adapter loads, in the engine, at the end."""
    dice = random.Random(23)

    async def test(house: House) -> None:
        async def cancel_later(signed: Any) -> None:
            await asyncio.sleep(dice.uniform(0, 0.15))
            await house.handle(house.cancel(signed))

        begun, cancels = [], []
        for number in range(200):
            call, signed = house.call(
                lora=dice.choice([None, "fin_risk_v1"]),
                stream=dice.random() < 0.5,
                sampling={"max_tokens": dice.randint(1, 12), "n": dice.choice([1, 1, 3])},
                ticket_changes={"department": dice.choice(["fin", "svc"])},
            )
            begun.append(house.begin(call))
            if number % 2:
                cancels.append(asyncio.create_task(cancel_later(signed)))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        await asyncio.gather(*(task for task, _ in begun), *cancels)
        for _, recorder in begun:
            (end,) = recorder.ends
            assert getattr(end, "final", False) or end.code == "cancelled"
        # The next one is served at once.
        async with asyncio.timeout(1):
            assert (await house.handle(house.call()[0])).answer.final
        assert house.versions.leases == 0

    run(test, limit=1000, seats=6, step_s=0.001, load_s=0.01)
