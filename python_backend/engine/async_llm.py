"""vLLM's ``AsyncLLM`` as our engine.

vLLM is imported when the engine starts, not with this module: the import takes seconds and needs a
locale and environment that ``prepare_process`` sets first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from python_backend.adapters.target import ModuleShape, Target
from python_backend.engine.base import EngineInfo, Job, Step, Version
from python_backend.errors import AdapterFailed, InvalidArgument, Unavailable
from python_backend.messages import Sequence

log = logging.getLogger(__name__)

WORKER_EXTENSION = "python_backend.engine.worker.LoraWorkerExtension"
#: Ranks vLLM allocates slots for; an adapter's own rank is free below the chosen one.
ALLOWED_MAX_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: Arguments that this project decides.
_OURS = frozenset({"worker_extension_cls", "enable_lora"})


class EngineStartError(Exception):
    """The engine cannot start; the text names the argument and the cure."""


def prepare_process(cores: int) -> None:
    """Environment that vLLM reads at import, for a CPU; values set by the operator stand.

    One worker process with ``cores - 1`` threads: a thread fewer than cores leaves one for
    tritonserver and this process, without which every step waits for the slowest thread
    (measured: p90 of a step 6.8 s against 0.15 s with two threads on two busy cores).
    """
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Lets the CPU worker live inside EngineCore, as on one GPU: a process and its imports less.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(max(1, cores - 1)),
        "TOKENIZERS_PARALLELISM": "false",
        # vLLM compiles small helpers at their first use: the first request for logprobs would
        # stall everyone's step (measured: 15 s) and fail where there is no C++ compiler.
        "TORCHDYNAMO_DISABLE": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def engine_arguments(raw: dict[str, Any], known_adapters: int) -> dict[str, Any]:
    """vLLM engine arguments from settings.

    Args:
        raw: the merged ``model.json`` and ``engine:`` section.
        known_adapters: adapters there are at start. The host cache gets room for all of them and
            for as many again to come: vLLM drops the least recently used at its limit and would
            then read it again inside a step.

    Raises:
        EngineStartError: an argument is missing or contradicts this project.
    """
    if not raw.get("model"):
        raise EngineStartError(
            "engine.model is not set: name the base model in serving.yaml (engine: model) "
            "or in vllm_lora/1/model.json"
        )
    for name in _OURS & raw.keys():
        if str(raw[name]).lower() != "true" or name != "enable_lora":
            raise EngineStartError(f"engine.{name} is set by this project; remove it")
    if raw.get("fully_sharded_loras"):
        raise EngineStartError("engine.fully_sharded_loras is not supported; remove it")
    max_rank = raw.get("max_lora_rank", 16)
    if max_rank not in ALLOWED_MAX_RANKS:
        allowed = ", ".join(map(str, ALLOWED_MAX_RANKS))
        raise EngineStartError(f"engine.max_lora_rank is {max_rank!r}; vLLM takes {allowed}")
    arguments = {"max_loras": 4, **raw, "enable_lora": True, "max_lora_rank": max_rank}
    arguments["worker_extension_cls"] = WORKER_EXTENSION
    room = max(int(arguments["max_loras"]), 2 * known_adapters + 64)
    arguments["max_cpu_loras"] = max(room, int(raw.get("max_cpu_loras") or 0))
    return arguments


class AsyncLLMEngine:
    """One ``AsyncLLM`` and the loop it lives on.

    Args:
        arguments: as ``engine_arguments`` makes them.
        stat_loggers: factories of vLLM stat loggers, which must never raise (see ``stats``).
    """

    def __init__(self, arguments: dict[str, Any], stat_loggers: Iterable[Any] = ()) -> None:
        self._arguments, self._stat_loggers = arguments, list(stat_loggers)
        self._llm: Any = None
        self._info: EngineInfo | None = None
        self._tokenizer: Any = None
        # One thread: a fast tokenizer is not safe to call from two at once.
        self._encoding = ThreadPoolExecutor(1, "encode")
        self._loading: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> EngineInfo:
        """See ``Engine.start``. Blocks its loop for as long as vLLM takes to load."""
        from vllm import __version__
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**self._arguments), stat_loggers=self._stat_loggers or None
        )
        self._tokenizer = self._llm.get_tokenizer()
        config = self._llm.model_config
        found = (await self._llm.collective_rpc("lora_install"))[0]
        target = _target(found, self._arguments["max_lora_rank"])
        self._info = EngineInfo(
            engine_version=str(__version__),
            model_dir=str(config.tokenizer or config.model),
            max_model_len=int(config.max_model_len),
            max_loras=int(self._arguments["max_loras"]),
            target=target,
            missing=tuple(found["missing"]),
        )
        return self._info

    async def encode(self, prompt: str, *, special_tokens: bool) -> tuple[int, ...]:
        """See ``Engine.encode``."""
        loop = asyncio.get_running_loop()
        ids = await loop.run_in_executor(
            self._encoding,
            lambda: self._tokenizer.encode(prompt, add_special_tokens=special_tokens),
        )
        return tuple(ids)

    async def load(self, version: Version) -> None:
        """See ``Engine.load``. Parallel calls for one version share one load."""
        task = self._loading.get(version.int_id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.get_running_loop().create_task(self._load(version))
            self._loading[version.int_id] = task
        # Shielded: a caller who goes away must not cancel the load that others wait for.
        await asyncio.shield(task)

    async def _load(self, version: Version) -> None:
        self._check_alive()
        try:
            await self._llm.add_lora(_lora_request(version))
        except Exception as error:
            log.error("adapter %s cannot be loaded: %s", version.name, error)
            # vLLM may have registered and half activated it (its slot then still holds most of
            # its previous occupant): whatever failed is taken out again.
            try:
                await self._llm.remove_lora(version.int_id)
            except Exception:
                self._check_alive()
                raise
            self._check_alive()
            raise AdapterFailed("this adapter cannot be loaded by the engine.") from error

    async def unload(self, int_id: int) -> bool:
        """See ``Engine.unload``. The caller has drained the version's requests."""
        self._loading.pop(int_id, None)
        return bool(await self._llm.remove_lora(int_id))

    async def generate(self, job: Job) -> AsyncIterator[Step]:
        """See ``Engine.generate``."""
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if job.version is not None:
            await self.load(job.version)
        self._check_alive()
        prompt = {"prompt_token_ids": list(job.token_ids), "cache_salt": job.cache_salt}
        lora = _lora_request(job.version) if job.version else None
        try:
            params = sampling_params(job)
            async for output in self._llm.generate(prompt, params, job.uid, lora_request=lora):
                yield _step(output, len(job.token_ids))
        except VLLMValidationError as error:
            # The engine's text may repeat the prompt or name a path: only the field is passed on.
            log.info("request %s refused by the engine: %s", job.uid, error)
            field = error.parameter or "sampling_parameters"
            raise InvalidArgument(str(field), "the engine refuses this value") from error
        except EngineDeadError as error:
            raise Unavailable("the engine has stopped.", retry_after=30) from error
        except EngineGenerateError as error:
            self._check_alive()
            cause = error.__cause__
            if isinstance(cause, ValueError | TypeError):
                log.info("request %s refused by the engine: %s", job.uid, cause)
                raise InvalidArgument(
                    "sampling_parameters", "the engine refuses these values"
                ) from error
            raise

    async def resident(self) -> tuple[int, ...]:
        """See ``Engine.resident``."""
        return tuple(sorted(int(i) for i in await self._llm.list_loras()))

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
            raise Unavailable("the engine has stopped.", retry_after=30)

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()
        self._encoding.shutdown(wait=False, cancel_futures=True)


def _lora_request(version: Version) -> Any:
    from vllm.lora.request import LoRARequest

    # Absolute: vLLM takes a relative path that does not exist for a name on the Hub.
    return LoRARequest(version.name, version.int_id, str(Path(version.path).absolute()))


def sampling_params(job: Job) -> Any:
    """The job's ``SamplingParams``; streaming asks for deltas, the rest for the end alone.

    Raises:
        InvalidArgument: vLLM refuses a value that our own table let through.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    fields = dict(job.request.sampling)
    kind = RequestOutputKind.DELTA if job.request.stream else RequestOutputKind.FINAL_ONLY
    try:
        if (guide := fields.pop("structured_outputs", None)) is not None:
            fields["structured_outputs"] = StructuredOutputsParams(**guide)
        if (bias := fields.pop("logit_bias", None)) is not None:
            fields["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        return SamplingParams(**fields, output_kind=kind)
    except (ValueError, TypeError) as error:
        log.info("request %s: sampling refused: %s", job.uid, error)
        field = getattr(error, "parameter", None) or "sampling_parameters"
        raise InvalidArgument(str(field), "the engine refuses this value") from error


def _step(output: Any, num_input_tokens: int) -> Step:
    sequences = {
        int(part.index): Sequence(
            text=part.text,
            num_tokens=len(part.token_ids),
            finish_reason=part.finish_reason,
            cumulative_logprob=part.cumulative_logprob,
            logprobs=None if part.logprobs is None else _logprobs_json(part.logprobs),
        )
        for part in output.outputs
    }
    cached = output.num_cached_tokens or 0
    return Step(sequences, num_input_tokens, cached, bool(output.finished))


def _logprobs_json(positions: Any) -> str:
    """The official backend's form: one object per position, token id to its log-probability."""
    return json.dumps(
        [
            {
                str(token): {
                    "logprob": value.logprob,
                    "rank": value.rank,
                    "decoded_token": value.decoded_token,
                }
                for token, value in position.items()
            }
            for position in positions
        ]
    )


def _target(found: dict[str, Any], max_rank: int) -> Target:
    """The adapter target that the worker's layers make."""
    modules: dict[str, ModuleShape] = {}
    for name, kind, parts in found["layers"]:
        parent = name.rsplit(".", 1)[0] + "." if "." in name else ""
        for part, (in_features, out_features) in parts.items():
            shape = ModuleShape(in_features, out_features, kind)
            modules[parent + part] = shape
    prefixes = tuple((old, new) for old, new in found["renames"])
    return Target(modules, int(max_rank), prefixes)
