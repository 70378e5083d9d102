"""The engine as the service sees it. ``AsyncLLMEngine`` and ``FakeEngine`` pass one contract suite.

Everything is a coroutine of one event loop. An engine knows nothing of departments, tickets or
policies: what reaches it has been allowed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from python_backend.adapters.naming import engine_name
from python_backend.adapters.target import Target
from python_backend.fusion.mixing import Distribution
from python_backend.messages import EngineRequest
from python_backend.messages import Sequence as Piece


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of one adapter, as the engine knows it.

    ``int_id`` is never used for another version in the life of the process; ``path`` is an
    immutable, content-addressed folder that outlives the version's time in the engine.
    """

    lora_id: str
    digest: str
    int_id: int
    path: Path

    @property
    def name(self) -> str:
        """``lora_id@digest12``: one name, one content."""
        return engine_name(self.lora_id, self.digest)


@dataclasses.dataclass(frozen=True)
class EngineInfo:
    """What a started engine says of itself.

    ``missing`` names the private parts of vLLM that this version lacks; with any of them missing
    the engine works through vLLM's public calls only.
    """

    engine_version: str
    model_dir: str
    max_model_len: int
    max_loras: int
    target: Target
    missing: tuple[str, ...] = ()
    #: Sequences that the engine computes in one step.
    max_num_seqs: int = 16
    #: Tokens that the model has, and those that end an answer.
    vocabulary: int = 0
    stop_ids: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Job:
    """One request, ready to run. ``token_ids`` has between 1 and ``max_model_len - 1`` ids.

    ``cache_salt`` separates the prefix caches of departments.
    """

    uid: str
    token_ids: tuple[int, ...]
    request: EngineRequest
    version: Version | None
    cache_salt: str


@dataclasses.dataclass(frozen=True)
class Step:
    """What a request gained: by sequence index, only those that moved.

    For a job that does not stream there is exactly one step, with every sequence whole.
    """

    sequences: Mapping[int, Piece]
    num_input_tokens: int
    num_cached_tokens: int
    finished: bool


class Session(Protocol):
    """A sequence that grows by what it is fed."""

    async def next(self, token_ids: Sequence[int]) -> Distribution:
        """Appends the tokens, at least one, and tells what may come next.

        Raises:
            AdapterFailed, Unavailable: as ``Engine.generate``.
        """


class Engine(Protocol):
    """One base model with LoRA adapters."""

    async def start(self) -> EngineInfo:
        """Loads the base model. Raises whatever stops it; the engine is then unusable."""

    async def encode(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        """The prompt's token ids."""

    async def load(self, version: Version) -> None:
        """Makes a version usable; a second call is cheap.

        Raises:
            AdapterFailed: it cannot be loaded; nothing of it is left in the engine.
            Unavailable: the engine is gone.
        """

    async def preload(self, version: Version) -> None:
        """Brings a version as near as it gets without taking a slot from anybody.

        Raises:
            AdapterFailed, Unavailable: as ``load``.
        """

    async def unload(self, int_id: int) -> bool:
        """Takes a version out of the engine; False if it was not there."""

    def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """Runs a job. Closing the iterator, or cancelling its task, aborts the job.

        Raises:
            InvalidArgument: the engine refuses a parameter.
            AdapterFailed: the job's version failed after all.
            Unavailable: the engine is gone.
        """

    def session(self, job: Job, candidates: int) -> AbstractAsyncContextManager[Session]:
        """A session with the job's version and salt, open for the block; it takes one seat.

        Of the job's request nothing counts, and its tokens are for the caller to feed.

        Args:
            candidates: how many of the likeliest tokens are told, at least.

        Raises:
            AdapterFailed, Unavailable: as ``generate``.
        """

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special: bool) -> Callable[[int], str]:
        """Tells for one token after the other what text has come with it, behind a prompt.

        Raises:
            InvalidArgument: the model's tokenizer cannot.
        """

    async def resident(self) -> tuple[int, ...]:
        """The ids of the versions in the engine's host cache, in no particular order."""

    async def trim(self) -> None:
        """Has the workers give memory back that they hold and do not use; returns at once.

        Raises:
            Unavailable: the engine is gone.
        """

    @property
    def alive(self) -> bool:
        """Whether the engine can still answer."""

    async def stop(self) -> None:
        """Ends the engine and its processes; callable more than once."""
