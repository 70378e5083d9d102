"""An engine without a model, for unit tests only; no server ever starts it.

It answers with words instead of tokens: the version's name over and over, ``base`` for the base
model, so that a test sees at once who answered. It passes the contract suite of the real engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np

from python_backend.adapters.naming import BASE
from python_backend.adapters.target import Target
from python_backend.engine.base import EngineInfo, Job, Step, Version
from python_backend.errors import AdapterFailed, InvalidArgument, Unavailable
from python_backend.fusion.mixing import Distribution
from python_backend.messages import Sequence as Piece

VOCABULARY = 50_000


class FakeEngine:
    """See ``Engine``.

    Args:
        step_s: seconds per word; 0 gives other tasks a turn and no more.
        load_s: seconds per load.

    ``failing`` holds the lora_ids whose load fails, ``error`` an exception that the next step of
    every job raises, ``counts`` how often there was a ``load``, ``unload`` or ``abort``.
    """

    def __init__(
        self, *, max_model_len: int = 64, max_loras: int = 2, step_s: float = 0.0, load_s: float = 0
    ) -> None:
        self.step_s, self.load_s = step_s, load_s
        self.failing: set[str] = set()
        self.error: Exception | None = None
        self.counts: Counter[str] = Counter()
        self.jobs: list[Job] = []
        self.running: set[str] = set()
        self._max_model_len, self._max_loras = max_model_len, max_loras
        self._loaded: dict[int, Version] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._alive = False

    async def start(self) -> EngineInfo:
        """See ``Engine.start``."""
        self._alive = True
        target = Target({}, max_rank=16)
        return EngineInfo(
            "fake", "", self._max_model_len, self._max_loras, target, vocabulary=VOCABULARY
        )

    async def encode(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        """See ``Engine.encode``: one id per word, the same for the same word."""
        self._check_alive()
        return tuple(zlib.crc32(word.encode()) % 50_000 for word in prompt.split())

    async def load(self, version: Version) -> None:
        """See ``Engine.load``."""
        self._check_alive()
        if version.int_id in self._loaded:
            return
        task = self._loading.get(version.int_id)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._load(version))
            self._loading[version.int_id] = task
        await asyncio.shield(task)

    async def _load(self, version: Version) -> None:
        self.counts["load"] += 1
        await asyncio.sleep(self.load_s)
        self._check_alive()
        if version.lora_id in self.failing:
            raise AdapterFailed("this adapter cannot be loaded by the engine.")
        self._loaded[version.int_id] = version

    async def preload(self, version: Version) -> None:
        """See ``Engine.preload``."""
        self.counts["preload"] += 1
        await self.load(version)

    async def unload(self, int_id: int) -> bool:
        """See ``Engine.unload``."""
        self._check_alive()
        self.counts["unload"] += 1
        task = self._loading.pop(int_id, None)
        if task is not None and not task.done():
            await asyncio.wait({task})
        return self._loaded.pop(int_id, None) is not None

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """See ``Engine.generate``."""
        if job.version is not None:
            await self.load(job.version)
        self._check_alive()
        _check_sampling(job.request.sampling)
        self.jobs.append(job)
        self.running.add(job.uid)
        finished = False
        try:
            async with contextlib.aclosing(self._steps(job)) as steps:
                async for step in steps:
                    finished = step.finished
                    yield step
        finally:
            self.running.discard(job.uid)
            if not finished:
                self.counts["abort"] += 1

    async def _steps(self, job: Job) -> AsyncGenerator[Step, None]:
        pieces, reason = _answer(job)
        count = int(job.request.sampling.get("n", 1))
        for position, piece in enumerate(pieces):
            await asyncio.sleep(self.step_s)
            self._check_alive()
            if self.error is not None:
                raise self.error
            last = position == len(pieces) - 1
            if job.request.stream:
                part = Piece(piece, 1, reason if last else None)
            elif last:
                part = Piece("".join(pieces), len(pieces), reason)
            else:
                continue
            yield Step(dict.fromkeys(range(count), part), len(job.token_ids), 0, last)

    @contextlib.asynccontextmanager
    async def session(self, job: Job, candidates: int) -> AsyncIterator[FakeSession]:
        """See ``Engine.session``: after n tokens the likeliest is the n-th of the version's own."""
        if job.version is not None:
            await self.load(job.version)
        self._check_alive()
        self.jobs.append(job)
        self.running.add(job.uid)
        try:
            yield FakeSession(self, job)
        finally:
            self.running.discard(job.uid)
            self.counts["session"] += 1

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special: bool) -> Callable[[int], str]:
        """See ``Engine.detokenizer``: a word per token."""
        return lambda token: f" t{token}"

    def check(self) -> None:
        """Raises what a step would raise now."""
        self._check_alive()
        if self.error is not None:
            raise self.error

    async def resident(self) -> tuple[int, ...]:
        """See ``Engine.resident``."""
        self._check_alive()
        return tuple(sorted(self._loaded))

    async def trim(self) -> None:
        """See ``Engine.trim``."""
        self._check_alive()
        self.counts["trim"] += 1

    @property
    def alive(self) -> bool:
        """See ``Engine.alive``."""
        return self._alive

    def die(self) -> None:
        """What a killed engine process looks like: every job fails at its next step."""
        self._alive = False

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        self._alive = False

    def _check_alive(self) -> None:
        if not self._alive:
            raise Unavailable("the engine has stopped.", retry_after=30)


class FakeSession:
    """See ``Session``. A token has the chance 1/2, 1/4, … from the version's own number on."""

    def __init__(self, engine: FakeEngine, job: Job) -> None:
        self._engine = engine
        self._first = job.version.int_id if job.version else 0
        #: What it has been fed.
        self.fed: list[int] = []

    async def next(self, token_ids: Sequence[int]) -> Distribution:
        """See ``Session.next``."""
        await asyncio.sleep(self._engine.step_s)
        self._engine.check()
        self.fed += token_ids
        ids = (self._first + np.arange(8)) % VOCABULARY
        return Distribution(ids, -np.log(2.0) * np.arange(1, 9))


def _check_sampling(sampling: dict[str, Any]) -> None:
    if sampling.get("temperature", 1.0) < 0:
        raise InvalidArgument("temperature", "the engine refuses this value")


def _answer(job: Job) -> tuple[list[str], str]:
    """The pieces of the answer, one per word, and the finish reason.

    As in vLLM the text ends before the first stop string, whose token counts.
    """
    sampling = job.request.sampling
    word = job.version.name if job.version else BASE
    pieces = [f" {word}"] * int(sampling.get("max_tokens", 16))
    stops = [sampling["stop"]] if isinstance(sampling.get("stop"), str) else sampling.get("stop")
    text = "".join(pieces)
    cuts = [text.find(stop) for stop in stops or () if stop in text]
    if not cuts:
        return pieces, "length"
    whole, rest = divmod(min(cuts), len(word) + 1)
    return [*pieces[:whole], pieces[whole][:rest]], "stop"
