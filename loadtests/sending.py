"""Sends a plan's calls from one of locust's processes, judges them, counts and records them."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any, TextIO

import gevent

from loadtests import results
from loadtests.doors import Answer, Doors
from loadtests.judge import route
from loadtests.plan import Call, Plan
from loadtests.results import Request
from tools.bench.figures import percentile


class Unexpected(Exception):
    """What locust shows of a call that did not go as it should."""


class Sender:
    """All the load of one process.

    Args:
        plan: what is sent.
        folder: where requests are recorded.
        fire: locust's event ``request``.
    """

    def __init__(self, plan: Plan, folder: Path, fire: Any) -> None:
        self.plan = plan
        self._folder, self._fire = folder, fire
        self._doors = Doors(plan)
        self._file: TextIO | None = None
        self._zero = 0.0
        self._numbers = {
            door: itertools.count() for door in ("grpc_stream", "http_stream", "unary")
        }
        self._worker = 0
        #: Calls under way.
        self.open = 0

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self._zero

    @property
    def over(self) -> bool:
        """Whether no more calls are to be sent."""
        return self.now >= self.plan.load.seconds

    def begin(self, worker: int) -> None:
        """The load begins now; arrivals are sent as they become due."""
        self._worker, self._zero = worker, time.perf_counter()
        if self._file is None:
            path = self._folder / results.PART.format(worker=worker)
            self._file = path.open("w", encoding="utf-8")
            gevent.spawn(self._send_arrivals, self.plan.share(worker))

    def end(self) -> None:
        """Closes the record."""
        if self._file is not None:
            self._file.close()

    def loop_of(self, door: str) -> tuple[Call, ...]:
        """The loop of the next user of a door, begun where no other user of it begins."""
        loops = [loop for loop in self.plan.load.loops if loop[0].user == door]
        if not loops:
            return ()
        number = self._worker + self.plan.workers * next(self._numbers[door])
        loop = loops[number % len(loops)]
        first = number // len(loops) % len(loop)
        return loop[first:] + loop[:first]

    def send(self, call: Call, due: float | None = None) -> str:
        """One call to its end, and its outcome.

        Args:
            due: seconds since the load began; of a loop's call None: it is due when it is sent.
        """
        self.open += 1
        try:
            sent = self.now
            answer = self._doors.send(call)
            self._note(call, sent if due is None else due, sent, answer)
            return answer.outcome
        finally:
            self.open -= 1

    def _send_arrivals(self, calls: tuple[Call, ...]) -> None:
        for call in calls:
            gevent.sleep(max(0.0, call.at - self.now))
            gevent.spawn(self.send, call, call.at)

    def _note(self, call: Call, due: float, sent: float, answer: Answer) -> None:
        request = recorded(call, due, sent, answer, self.plan.words)
        if self._file is not None:
            results.append(self._file, request)
        problem = None
        if request.outcome not in call.expected:
            problem = Unexpected(f"{call.kind}: {request.outcome} ({answer.message[:80]})")
        elif request.route == "wrong":
            problem = Unexpected(f"wrong route: asked {request.lora_id}, got {request.served}")
        name = call.department if call.kind == "good" else f"{call.department} {call.kind}"
        self._count(call.user, name, request.total, request.tokens, problem)
        if request.ttft is not None:
            self._count("TTFT", name, request.ttft)
        if request.gaps:
            self._count("inter-token", name, request.gaps[0])
        if request.tokens:
            # Locust knows times only: a row of this type counts tokens where others count ms.
            self._count("tokens", name, request.tokens / 1e3, request.tokens)

    def _count(
        self, kind: str, name: str, seconds: float, length: int = 0, problem: Any = None
    ) -> None:
        self._fire(
            request_type=kind,
            name=name,
            response_time=seconds * 1e3,
            response_length=length,
            exception=problem,
            context={},
        )


def recorded(call: Call, due: float, sent: float, answer: Answer, words: frozenset[str]) -> Request:
    """The line of a call. Unary answers come at once: they have no first token."""
    at = answer.pieces_at if call.user != "unary" else []
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    return Request(
        t=round(due, 6),
        sent=round(sent, 6),
        user=call.user,
        department=call.department,
        kind=call.kind,
        lora_id=call.lora_id,
        served=answer.served,
        outcome=answer.outcome,
        ttft=round(at[0] - answer.began, 6) if at else None,
        gaps=(round(percentile(gaps, 50), 6), round(max(gaps), 6)) if gaps else (),
        total=round(answer.ended - answer.began, 6),
        tokens=answer.tokens,
        route=route(call, answer.text, answer.served, words),
        uid=answer.uid,
    )
