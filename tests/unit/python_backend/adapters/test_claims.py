from __future__ import annotations

import asyncio

import pytest

from python_backend.adapters.claims import Claims


def test_one_at_a_time() -> None:
    claims = Claims()
    with claims.attempt("a") as first, claims.attempt("a") as second, claims.attempt("b") as other:
        assert (first, second, other) == (True, False, True)
        assert len(claims) == 2
    assert len(claims) == 0
    with claims.attempt("a") as again:
        assert again


def test_a_refused_attempt_takes_nobodys_claim_away() -> None:
    claims = Claims()
    with claims.attempt("a"):
        with claims.attempt("a"):
            pass
        with claims.attempt("a") as claimed:
            assert not claimed


def test_waiting_holds_no_thread_and_leaves_nothing() -> None:
    async def main() -> None:
        claims, inside, most = Claims(), 0, 0

        async def work(name: str) -> None:
            nonlocal inside, most
            async with claims.hold(name):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

        async with asyncio.timeout(20):
            await asyncio.gather(*(work("a") for _ in range(10)))
            assert most == 1
            await asyncio.gather(*(work(f"a{number}") for number in range(10)))
            assert most > 1
        assert len(claims) == 0

    asyncio.run(main())


def test_an_error_or_a_cancel_gives_it_back() -> None:
    async def main() -> None:
        claims = Claims()
        with pytest.raises(ZeroDivisionError):
            async with claims.hold("a"):
                raise ZeroDivisionError
        with claims.attempt("a"):
            waiting = asyncio.create_task(claims.hold("a").__aenter__())
            await asyncio.sleep(0.03)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert len(claims) == 0

    asyncio.run(main())
