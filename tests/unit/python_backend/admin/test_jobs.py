from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from python_backend.admin.jobs import Job, Jobs
from python_backend.errors import AdapterFailed, InvalidArgument, Overloaded


def run(test: Callable[[Jobs], Awaitable[None]], **bounds: int) -> None:
    async def main() -> None:
        now = iter(range(1_000_000))
        jobs = Jobs(lambda: float(next(now)), **bounds)
        try:
            await test(jobs)
        finally:
            await jobs.stop()
        assert jobs.running == 0

    asyncio.run(main())


async def quick(job: Job) -> str:
    return f"{job.op} done"


async def endless(job: Job) -> str:
    job.step = "waiting"
    await asyncio.Event().wait()
    return ""


def test_a_job_tells_what_it_does_and_how_it_ended() -> None:
    async def test(jobs: Jobs) -> None:
        job = jobs.start("warm", "fin_risk_v1", endless)
        await asyncio.sleep(0)
        shown = jobs.get(job.job).shown(5.0)
        assert (shown["state"], shown["step"], shown["lora_id"]) == (
            "running",
            "waiting",
            "fin_risk_v1",
        )
        done = jobs.start("add", "fin_risk_v2", quick)
        await asyncio.sleep(0)
        assert (done.state, done.result) == ("done", "add done")
        await jobs.stop()
        assert (job.state, job.error) == ("failed", "unavailable: the server is stopping.")

    run(test)


def test_what_may_be_cancelled_is() -> None:
    async def cancellable(job: Job) -> str:
        job.may_cancel = True
        return await endless(job)

    async def test(jobs: Jobs) -> None:
        job, fixed = (jobs.start("add", "a", work) for work in (cancellable, endless))
        done = jobs.start("add", "a", quick)
        await asyncio.sleep(0)
        assert [jobs.cancel(one.job) for one in (job, fixed, done)] == [True, False, False]
        await asyncio.sleep(0.01)
        assert (job.state, job.error) == ("failed", "cancelled: an operator cancelled it.")
        assert (fixed.state, done.state) == ("running", "done")
        assert jobs.cancel(job.job)  # Once more: the same answer.
        assert "may_cancel" not in job.shown(9.0)
        with pytest.raises(InvalidArgument):
            jobs.cancel("none")

    run(test)


def test_errors() -> None:
    async def failing(job: Job) -> str:
        raise AdapterFailed("truncated.")

    async def broken(job: Job) -> str:
        raise ZeroDivisionError("a secret")

    async def test(jobs: Jobs) -> None:
        first, second = jobs.start("add", "a", failing), jobs.start("add", "b", broken)
        await asyncio.sleep(0.01)
        assert first.error == "adapter_failed: truncated."
        assert second.error.startswith("internal: ") and "secret" not in second.error
        with pytest.raises(InvalidArgument):
            jobs.get("none")

    run(test)


def test_bounds() -> None:
    async def test(jobs: Jobs) -> None:
        waiting = [jobs.start("warm", "a", endless) for _ in range(2)]
        with pytest.raises(Overloaded):
            jobs.start("warm", "a", quick)
        await jobs.stop()
        for _ in range(20):
            last = jobs.start("warm", "a", quick)
            await asyncio.sleep(0)
        assert len(jobs) == 5
        assert jobs.get(last.job) is last
        with pytest.raises(InvalidArgument):
            jobs.get(waiting[0].job)

    run(test, max_running=2, max_kept=5)
