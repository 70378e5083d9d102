"""vLLM's ``AsyncLLM`` as our engine.

vLLM is imported when the engine starts, not with this module: the import takes seconds and needs a
locale and environment that ``arguments.prepare_process`` sets first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from python_backend.engine import convert, families, session
from python_backend.engine.arguments import EngineStartError
from python_backend.engine.base import EngineInfo, Job, Session, Step, Version
from python_backend.engine.board import Board
from python_backend.engine.loading import Loading
from python_backend.engine.watch import FailureFlag, StepWatch
from python_backend.errors import AdapterFailed, InvalidArgument, Unavailable

log = logging.getLogger(__name__)

#: Requests that a version may corrupt, each after a healed cache, before it is given up.
STRIKES = 3
_GONE = "the engine has stopped."


class AsyncLLMEngine:
    """One ``AsyncLLM`` and the loop it lives on.

    Args:
        arguments: as ``arguments.engine_arguments`` makes them.
        flag_path: a file in the runtime directory for the worker's failure flag.
        stat_loggers: vLLM stat logger factories; they must not raise.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        flag_path: Path,
        stat_loggers: Sequence[Any] = (),
    ) -> None:
        self._arguments = arguments
        self._flag_path = flag_path
        self._stat_loggers = [
            StepWatch(lambda: self.on_step(), self._corrupted),
            *stat_loggers,
        ]
        #: Called on the event loop when a step has ended; what it raises is logged.
        self.on_step: Callable[[], None] = lambda: None
        self._llm: Any = None
        self._tokenizer: Any = None
        # One thread: a fast tokenizer is not safe to call from two at once.
        self._encoding = ThreadPoolExecutor(1, "encode")
        self._loading: Loading | None = None
        self._copy_of: Callable[[Version], Path | None] = lambda version: None
        self._failed: dict[int, str] = {}
        self._strikes: Counter[int] = Counter()
        self._corrupted_uids: deque[str] = deque(maxlen=4096)
        self._healing: asyncio.Task[None] | None = None
        #: How often a poisoned KV cache was healed.
        self.heals = 0

    async def start(self) -> EngineInfo:
        """See ``Engine.start``. Blocks its loop for as long as vLLM takes to load.

        Raises:
            EngineStartError: this vLLM cannot serve adapters safely on this machine, or not
                this model.
        """
        from vllm import __version__
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._flag = FailureFlag(self._flag_path)
        self._flag_seen = self._flag.total()
        engine_args = AsyncEngineArgs(**self._arguments)
        families.check_model(engine_args)
        self._llm = AsyncLLM.from_engine_args(engine_args, stat_loggers=self._stat_loggers)
        self._tokenizer = self._llm.get_tokenizer()
        config = self._llm.model_config
        self._vocabulary = int(config.get_vocab_size())
        board_path = self._flag_path.with_name(f"{self._flag_path.name}-reads")
        board = Board(board_path)
        workers = await self._llm.collective_rpc(
            "lora_install", args=(str(self._flag_path), str(board_path))
        )
        if any(found["on_cpu"] and not found["cpu_kernels"] for found in workers):
            await self.stop()
            raise EngineStartError(
                f"vLLM {__version__}: its CPU LoRA kernels answer base requests with other "
                "people's adapters and are not the ones this project can repair; "
                "use a vLLM from 0.24 to 0.32"
            )
        max_rank = int(self._arguments["max_lora_rank"])
        missing = {name for found in workers for name in found["missing"]}
        readers = 0 if missing else len(workers)
        self._loading = Loading(self._llm, board, readers, self._check_alive)
        self._loading.copy_of = lambda version: self._copy_of(version)
        if not missing:
            target = convert.target_of_workers(workers, max_rank)
        else:
            target = convert.target_of_config(str(config.model), max_rank)
        try:
            await families.try_out(self._llm)
        except EngineStartError:
            await self.stop()
            raise
        target = dataclasses.replace(
            target, per_module_scaling=all(found["per_module_scaling"] for found in workers)
        )
        return EngineInfo(
            engine_version=str(__version__),
            model_dir=str(config.tokenizer or config.model),
            max_model_len=int(config.max_model_len),
            max_loras=int(self._arguments["max_loras"]),
            target=target,
            missing=tuple(sorted(missing)),
            max_num_seqs=int(self._llm.vllm_config.scheduler_config.max_num_seqs),
            vocabulary=self._vocabulary,
            stop_ids=session.stop_ids(self._llm, self._tokenizer),
        )

    async def encode(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        """See ``Engine.encode``."""
        self._check_alive()
        loop = asyncio.get_running_loop()
        ids = await loop.run_in_executor(
            self._encoding,
            lambda: self._tokenizer.encode(prompt, add_special_tokens=special_tokens),
        )
        return tuple(ids)

    async def load(self, version: Version) -> None:
        """See ``Engine.load``. Parallel calls for one version share one load."""
        self._check_not_failed(version)
        await self._loads().load(version)

    async def preload(self, version: Version) -> None:
        """See ``Engine.preload``."""
        self._check_not_failed(version)
        await self._loads().preload(version)

    async def unload(self, int_id: int) -> bool:
        """See ``Engine.unload``. The caller has drained the version's requests."""
        return await self._loads().unload(int_id)

    def read_from(self, copy_of: Callable[[Version], Path | None]) -> None:
        """Has versions read from a quicker copy where there is one; their path stays the same."""
        self._copy_of = copy_of

    async def slow_reads(self, seconds: float) -> None:
        """For tests and benchmarks: every read of an adapter takes so much longer."""
        await self._llm.collective_rpc("lora_slow_reads", args=(seconds,))

    def _loads(self) -> Loading:
        self._check_alive()
        if self._loading is None:
            raise Unavailable(_GONE, retry_after=30)
        return self._loading

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        """See ``Engine.generate``."""
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if job.version is not None:
            await self.load(job.version)
        self._check_alive()
        prompt = {"prompt_token_ids": list(job.token_ids), "cache_salt": job.cache_salt}
        lora = convert.lora_request(job.version) if job.version else None
        convert.check_token_ids(job, self._vocabulary)
        try:
            params = convert.sampling_params(job)
            outputs = self._llm.generate(prompt, params, job.uid, lora_request=lora)
            # Closed with us: the job is aborted now, not when the garbage collector comes.
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    await self._check_output(job, finished=bool(output.finished))
                    yield convert.step(output, len(job.token_ids))
        except VLLMValidationError as error:
            # The engine's text may repeat the prompt or name a path: only the field is passed on.
            log.info("request %s refused by the engine: %s", job.uid, error)
            field = error.parameter or "sampling_parameters"
            raise InvalidArgument(str(field), "the engine refuses this value") from error
        except EngineDeadError as error:
            raise Unavailable(_GONE, retry_after=30) from error
        except (ValueError, TypeError) as error:
            # vLLM 0.24 raises these as they are, 0.32 inside an ``EngineGenerateError``.
            raise convert.refused(job, error) from error
        except EngineGenerateError as error:
            self._check_alive()
            if isinstance(error.__cause__, ValueError | TypeError):
                raise convert.refused(job, error.__cause__) from error
            raise

    @contextlib.asynccontextmanager
    async def session(self, job: Job, candidates: int) -> AsyncIterator[Session]:
        """See ``Engine.session``."""
        if job.version is not None:
            await self.load(job.version)
        self._check_alive()
        check = functools.partial(self._check_output, job, finished=False)
        async with session.opened(self._llm, job, candidates, check) as opened:
            yield opened

    def detokenizer(self, prompt_ids: Sequence[int], *, skip_special: bool) -> Callable[[int], str]:
        """See ``Engine.detokenizer``."""
        return session.detokenizer(self._tokenizer, prompt_ids, skip_special=skip_special)

    async def _check_output(self, job: Job, *, finished: bool) -> None:
        """Keeps an output from its caller that base or garbage has made in an adapter's name."""
        if (total := self._flag.total()) != self._flag_seen:
            for state in await self._llm.collective_rpc("lora_state"):
                self._failed.update(state["failed"])
            # Only now: another job's output may be waiting for the same answer.
            self._flag_seen = total
        if job.version is not None:
            self._check_not_failed(job.version)
        if not finished:
            return
        # The watch sees the end of a request in the same turn of the loop, but after it.
        await asyncio.sleep(0)
        if job.uid in self._corrupted_uids:
            if job.version is not None:
                self._strike(job.version)
            raise Unavailable("the model's numbers were not finite; try again.", retry_after=1)
        if job.version is not None:
            # It may have been another's NaN that it met: a clean answer speaks for it.
            self._strikes.pop(job.version.int_id, None)

    def _check_not_failed(self, version: Version) -> None:
        if (reason := self._failed.get(version.int_id)) is not None:
            log.error("adapter %s failed in the engine: %s", version.name, reason)
            raise AdapterFailed("this adapter failed in the engine.")

    def _corrupted(self, uids: set[str]) -> None:
        """Called by the watch: non-finite values have been in the cache; heal it."""
        self._corrupted_uids.extend(uids)
        if self._healing is None or self._healing.done():
            self._healing = asyncio.get_running_loop().create_task(self._heal())

    async def _heal(self) -> None:
        """Takes non-finite values out of the KV cache, and answers out of the prefix cache.

        Freed blocks keep their NaN, and what is masked out of attention still meets it as 0·NaN:
        without this, base and every other adapter answer garbage from then on. Healthy requests
        keep their values; they are computed again because the prefix cache is emptied.
        """
        try:
            cleaned = await self._llm.collective_rpc("lora_heal_kv_cache")
            await self._llm.reset_prefix_cache(True)
            self.heals += 1
            log.error("the KV cache held %d non-finite values and was healed", sum(cleaned))
        except Exception:
            log.exception("the KV cache could not be healed")

    def _strike(self, version: Version) -> None:
        self._strikes[version.int_id] += 1
        if self._strikes[version.int_id] >= STRIKES:
            self._failed[version.int_id] = "non-finite values, again and again"

    async def resident(self) -> tuple[int, ...]:
        """See ``Engine.resident``."""
        self._check_alive()
        return tuple(sorted(int(i) for i in await self._llm.list_loras()))

    async def trim(self) -> None:
        """See ``Engine.trim``."""
        self._check_alive()
        await self._llm.collective_rpc("lora_trim")

    async def state(self) -> dict[str, Any]:
        """The worker's view of slots and host cache (``LoraWorkerExtension.lora_state``)."""
        # No timeout: one that expires leaves its reply in the queue, for the next call to read.
        return cast(dict[str, Any], (await self._llm.collective_rpc("lora_state"))[0])

    @property
    def alive(self) -> bool:
        """See ``Engine.alive``."""
        return self._llm is not None and not self._llm.errored

    def _check_alive(self) -> None:
        if not self.alive:
            raise Unavailable(_GONE, retry_after=30)

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()
        self._encoding.shutdown(wait=False, cancel_futures=True)
