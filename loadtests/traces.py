"""Calls out of the workloads that this field compares itself by. Deterministic by their seed.

Times, adapters and lengths are those of ``tools simulate``, so that the simulator and a load test
speak of the same load.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from loadtests.cast import Member
from loadtests.plan import Call
from loadtests.results import User
from tools.demo.words import listed_words
from tools.simulate.engine import Job
from tools.simulate.workloads import Workload

DOORS: tuple[User, ...] = ("grpc_stream", "http_stream", "unary")


def prompts(seed: int) -> Callable[[int], str]:
    """A source of prompts of so many words, none of them alike."""
    dice, words = random.Random(seed), listed_words()  # noqa: S311 - a load, no secrets
    return lambda count: " ".join(dice.choices(words, k=max(1, count)))


def gamma(rate: float, seconds: float, *, cv: float = 1.0, seed: int = 0) -> list[float]:
    """Arrival times below ``seconds``, with gaps of Gamma(1/cv², cv²/rate)."""
    # Six deviations more than are expected: the last one lies beyond the end.
    count = int(rate * seconds + 6 * max(1.0, cv) * (rate * seconds) ** 0.5) + 10
    times = Workload(requests=count, rate=rate, cv=cv, seed=seed).arrivals(
        np.random.default_rng(seed)
    )
    return [round(at, 6) for at in times.tolist() if at < seconds]


def from_jobs(
    jobs: Iterable[Job],
    members: Sequence[Member],
    seconds: float,
    *,
    doors: Sequence[User] = DOORS,
    seed: int = 0,
) -> tuple[Call, ...]:
    """The jobs that are due within ``seconds``; adapter k is that of ``members[k]``.

    The doors take turns.
    """
    prompt = prompts(seed)
    due = ((job.adapter, job) for job in jobs if job.at_s < seconds)
    return tuple(
        call(
            members[adapter or 0],
            prompt(job.tokens),
            job.output,
            at=round(job.at_s, 6),
            user=doors[number % len(doors)],
        )
        for number, (adapter, job) in enumerate(due)
    )


def call(
    member: Member, prompt: str, tokens: int, *, at: float = 0.0, user: User = "grpc_stream"
) -> Call:
    """A good call of a department for one of its adapters."""
    return Call(
        at=at,
        user=user,
        department=member.department,
        lora_id=member.lora_id,
        word=member.word,
        prompt=prompt,
        tokens=tokens,
    )


def loop(
    members: Sequence[Member], tokens: int, *, user: User, seed: int, length: int = 16, words: int
) -> tuple[Call, ...]:
    """A closed loop through ``members`` in turn, ``length`` different prompts of ``words``."""
    prompt = prompts(seed)
    return tuple(
        call(members[number % len(members)], prompt(words), tokens, user=user)
        for number in range(length)
    )


def by_time(*parts: Iterable[Call]) -> tuple[Call, ...]:
    """All of the calls in the order in which they are due."""
    return tuple(sorted((one for part in parts for one in part), key=lambda one: one.at))
