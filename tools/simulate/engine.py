"""An engine in simulated time: steps of measured cost, continuous batching, no model.

A step lasts ``fixed + per_sequence·sequences + per_prompt_token·new prompt tokens + per_switch·
switches`` seconds and writes one token for each sequence. Between arrivals and ends a batch does
not change, so its steps are taken in one go: the cost of a simulation is in its requests, not in
their tokens.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterator
from typing import Protocol

from python_backend.admission.department import Request

#: No answer is longer than this, tokens.
_NEVER = 1 << 60


@dataclasses.dataclass(frozen=True)
class StepCost:
    """What a step costs, seconds.

    The defaults were fitted to ``tools bench switching`` on two CPU cores with the demo's model of
    135 M parameters: the step with 16 sequences and with 4, the time to the first of 16 answers,
    and the throughput of 16 adapters in 4 slots.
    """

    fixed_s: float = 0.0187
    per_sequence_s: float = 0.00083
    per_prompt_token_s: float = 0.00054
    per_switch_s: float = 0.00475


class Chooser(Protocol):
    """Who enters next: ``admission.Scheduler``, or ``fcfs.FirstCome`` beside it."""

    @property
    def switches(self) -> int:
        """How often an adapter took another one's slot."""

    def enqueue(self, request: Request, now_s: float) -> None:
        """A request begins to wait."""

    def admit(self, now_s: float) -> Request | None:
        """The request that enters now, or None."""

    def leave(self, request: Request, now_s: float) -> None:
        """A request ends."""

    @property
    def held(self) -> bool:
        """Whether somebody waits only for the next step."""

    def stepped(self) -> bool:
        """A step has ended; what ``held`` was."""


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """A request of the workload. Times are seconds from the start; ``stream`` says whose it is."""

    at_s: float
    department: str
    adapter: int | None
    tokens: int
    output: int
    stream: int = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """A job that has ended."""

    job: Job
    first_s: float
    end_s: float


def simulate(
    jobs: Iterator[Job],
    chooser: Chooser,
    cost: StepCost,
    again: Callable[[Done], Job | None] = lambda done: None,
    max_tokens: int | None = None,
) -> Iterator[Done]:
    """Runs a workload to its end and yields what has ended.

    Args:
        jobs: by time of arrival.
        again: the job that its caller sends after one has ended (closed loops), or None.
        max_tokens: what requests say they may write; None for what they will.
    """
    now, step, arrivals = 0.0, 0, 0
    coming: list[tuple[float, int, Job]] = []
    running: list[tuple[int, int, Request, Job, float]] = []
    jobs_of: dict[int, Job] = {}
    sequences = 0
    following = next(jobs, None)
    while True:
        while following is not None and following.at_s <= now:
            arrivals += 1
            _arrive(following, chooser, jobs_of, now, max_tokens)
            following = next(jobs, None)
        while coming and coming[0][0] <= now:
            _arrive(heapq.heappop(coming)[2], chooser, jobs_of, now, max_tokens)
        before, prompt, new = chooser.switches, 0, []
        while (request := chooser.admit(now)) is not None:
            prompt += request.tokens
            new.append(request)
        sequences += len(new)
        next_s = min(
            following.at_s if following is not None else math.inf,
            coming[0][0] if coming else math.inf,
        )
        if not sequences:
            if next_s == math.inf:
                return
            now = next_s
            continue
        each = cost.fixed_s + cost.per_sequence_s * sequences
        if new:
            now += each + cost.per_prompt_token_s * prompt
            now += cost.per_switch_s * (chooser.switches - before)
            step += 1
            for request in new:
                arrivals += 1
                job = jobs_of.pop(request.arrival)
                heapq.heappush(running, (step - 1 + job.output, arrivals, request, job, now))
        else:
            steps = running[0][0] - step
            if chooser.held:
                steps = 1
            elif next_s != math.inf:
                steps = max(1, min(steps, math.ceil((next_s - now) / each)))
            now += each * steps
            step += steps
        chooser.stepped()
        while running and running[0][0] <= step:
            _, _, request, job, first_s = heapq.heappop(running)
            request.produced = job.output
            chooser.leave(request, now)
            sequences -= 1
            done = Done(job, first_s, now)
            yield done
            if (another := again(done)) is not None:
                arrivals += 1
                heapq.heappush(coming, (another.at_s, arrivals, another))


def _arrive(
    job: Job, chooser: Chooser, jobs_of: dict[int, Job], now_s: float, max_tokens: int | None
) -> None:
    request = Request(job.department, job.adapter, 1, job.tokens, max_tokens or job.output)
    chooser.enqueue(request, now_s)
    jobs_of[request.arrival] = job
