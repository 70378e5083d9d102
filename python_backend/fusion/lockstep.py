"""Several streams decoded in lockstep: each is fed the token that was drawn from their mixture."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from python_backend.engine.base import Engine, EngineInfo, Job, Step
from python_backend.fusion import mixing
from python_backend.fusion.mixing import Distribution
from python_backend.fusion.stopping import Stops
from python_backend.messages import Sequence as Piece

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Stream:
    """One part: its job, which has the same prompt as all others', and its share."""

    job: Job
    weight: float


async def decode(
    engine: Engine, info: EngineInfo, streams: Sequence[Stream], candidates: int
) -> AsyncGenerator[Step, None]:
    """The mixture's answer, in steps as ``Engine.generate`` has them.

    Args:
        streams: at least one; their weights sum to one. Sampling is the first one's.
        candidates: the likeliest tokens of each part that are looked at.

    Raises:
        ServingError: as ``Engine.generate``.
    """
    first = streams[0].job
    answer = _Answer(engine, info, first)
    async with contextlib.AsyncExitStack() as opened:
        sessions = [
            await opened.enter_async_context(engine.session(stream.job, candidates))
            for stream in streams
        ]
        weights = [stream.weight for stream in streams]
        fed: tuple[int, ...] = first.token_ids
        while not answer.finished:
            parts = await _all([session.next(fed) for session in sessions])
            mixed = mixing.mixture(parts, weights, info.vocabulary)
            fed = (answer.take(mixed),)
            if first.request.stream or answer.finished:
                yield answer.step()


async def _all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Every result; when one fails or this is cancelled, none is left running."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Answer:
    """What has been drawn so far, and what of it has been told."""

    def __init__(self, engine: Engine, info: EngineInfo, job: Job) -> None:
        sampling = job.request.sampling
        self._sampling, self._job = sampling, job
        self._random = mixing.random_source(sampling.get("seed"))
        self._text_of = engine.detokenizer(
            job.token_ids, skip_special=bool(sampling.get("skip_special_tokens", True))
        )
        self._engine = engine
        stops = sampling.get("stop") or ()
        self._stops = Stops(
            [stops] if isinstance(stops, str) else stops,
            include=bool(sampling.get("include_stop_str_in_output", False)),
        )
        self._ends = set(sampling.get("stop_token_ids") or ())
        if not sampling.get("ignore_eos", False):
            self._ends |= info.stop_ids
        room = info.max_model_len - len(job.token_ids)
        self._most = min(int(sampling["max_tokens"]), room)
        self._count = self._told = 0
        self._text, self._sum = "", 0.0
        self._logprobs: list[dict[str, Any]] = []
        self.reason: str | None = None

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to draw."""
        return self.reason is not None

    def take(self, mixed: Distribution) -> int:
        """Draws the next token and says which it is."""
        at = mixing.choose(mixed, self._sampling, self._random)
        token = int(mixed.ids[at])
        self._count += 1
        self._sum += float(mixed.logprobs[at])
        if (most := self._sampling.get("logprobs")) is not None:
            self._logprobs.append(self._row(mixed, at, int(most)))
        if token in self._ends:
            # As in vLLM: the token counts, its text is not shown.
            self.reason = "stop"
        else:
            self._text += self._stops.feed(self._text_of(token))
            if self._stops.stopped:
                self.reason = "stop"
            elif self._count >= self._most:
                self.reason = "length"
        if self.finished:
            self._text += self._stops.rest()
        return token

    def _row(self, mixed: Distribution, at: int, most: int) -> dict[str, Any]:
        """One position in the official backend's form: the likeliest, and the one drawn."""
        positions = dict.fromkeys([*range(min(most, len(mixed.ids))), at])
        found = {}
        for n in positions:
            token = int(mixed.ids[n])
            text = self._engine.detokenizer((), skip_special=False)(token)
            logprob = float(mixed.logprobs[n])
            found[str(token)] = {"logprob": logprob, "rank": n + 1, "decoded_token": text}
        return found

    def step(self) -> Step:
        """What has come since the last step."""
        wanted = "logprobs" in self._sampling
        piece = Piece(
            text=self._text,
            num_tokens=self._count - self._told,
            finish_reason=self.reason,
            cumulative_logprob=self._sum if wanted else None,
            logprobs=json.dumps(self._logprobs) if wanted else None,
        )
        self._text, self._told, self._logprobs = "", self._count, []
        return Step({0: piece}, len(self._job.token_ids), 0, self.finished)
