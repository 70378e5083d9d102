"""A request that is fed token by token, by vLLM's streaming inputs.

vLLM keeps a session's KV blocks between inputs, drops what it drew itself, and computes only what
is new: a step of a session costs what a step of an ordinary answer costs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from python_backend.engine import convert
from python_backend.engine.base import Job
from python_backend.errors import InvalidArgument, Unavailable
from python_backend.fusion.mixing import Distribution

#: Tokens of the prompt that the text of an answer may depend on (byte pieces, leading spaces).
_CONTEXT = 8


class LlmSession:
    """See ``engine.base.Session``.

    Args:
        llm: vLLM's ``AsyncLLM``.
        candidates: the likeliest tokens that ``next`` tells of.
        check: raises ``ServingError`` where what has come must not be used.
    """

    def __init__(
        self, llm: Any, job: Job, candidates: int, check: Callable[[], Awaitable[None]]
    ) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        self._params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=candidates,
            flat_logprobs=True,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._salt, self._check = job.cache_salt, check
        self._inputs: asyncio.Queue[list[int]] = asyncio.Queue()
        lora = convert.lora_request(job.version) if job.version else None
        self._outputs = llm.generate(self._feed(), self._params, job.uid, lora_request=lora)

    async def _feed(self) -> AsyncGenerator[Any, None]:
        from vllm.engine.protocol import StreamingInput

        while True:
            ids = await self._inputs.get()
            yield StreamingInput({"prompt_token_ids": ids, "cache_salt": self._salt}, self._params)

    async def next(self, token_ids: Sequence[int]) -> Distribution:
        """See ``Session.next``."""
        from vllm.v1.engine.exceptions import EngineDeadError

        self._inputs.put_nowait(list(token_ids))
        try:
            output = await anext(self._outputs)
        except StopAsyncIteration:
            raise Unavailable("the engine ended the request early.", retry_after=5) from None
        except EngineDeadError:
            raise Unavailable("the engine has stopped.", retry_after=30) from None
        await self._check()
        row = output.outputs[0].logprobs
        # The token that vLLM drew stands in front of the likeliest, among which it is again.
        ids, first = np.unique(np.asarray(row.token_ids, np.int64), return_index=True)
        logprobs = np.asarray(row.logprobs, np.float64)[first]
        if np.isnan(logprobs).any():
            raise Unavailable("the model's numbers were not finite; try again.", retry_after=1)
        return Distribution(ids, logprobs)

    async def close(self) -> None:
        """Ends it in the engine."""
        await self._outputs.aclose()


@contextlib.asynccontextmanager
async def opened(
    llm: Any, job: Job, candidates: int, check: Callable[[], Awaitable[None]]
) -> AsyncIterator[LlmSession]:
    """A session that is closed when the block ends; see ``LlmSession``."""
    session = LlmSession(llm, job, candidates, check)
    try:
        yield session
    finally:
        await session.close()


def detokenizer(
    tokenizer: Any, prompt_ids: Sequence[int], *, skip_special: bool
) -> Callable[[int], str]:
    """See ``Engine.detokenizer``. Raises ``InvalidArgument`` where there is no fast tokenizer."""
    from tokenizers.decoders import DecodeStream

    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise InvalidArgument("fusion.mode", "distribution needs a model with a fast tokenizer")
    stream = DecodeStream(skip_special_tokens=skip_special)
    for token in prompt_ids[-_CONTEXT:]:
        stream.step(fast, int(token))
    return lambda token: stream.step(fast, token) or ""


def stop_ids(llm: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer: the tokenizer's, and those of the generation config."""
    found = {tokenizer.eos_token_id}
    config = llm.model_config.try_get_generation_config()
    named = config.get("eos_token_id") if isinstance(config, dict) else None
    found |= set(named) if isinstance(named, list) else {named}
    return frozenset(int(token) for token in found if token is not None)
