"""vLLM's statistics as metric updates.

vLLM calls a stat logger on the engine's event loop after every step, and what a logger raises ends
the engine for good. Its classes are documented as unstable, so none is imported: a stat logger is
used by its methods alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from python_backend import vllm_metrics as names
from python_backend.lora_metrics import ENGINE_REQUESTS, KV_CACHE
from python_backend.metrics import Update

log = logging.getLogger(__name__)

#: Takes the updates of one step; must not block.
Sink = Callable[[Sequence[Update]], None]


class StatLogger:
    """One engine's stat logger. ``failures`` counts the steps that could not be reported."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._shown: dict[Update, None] = {}
        self.failures = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Reports one step. Never raises."""
        try:
            found = [] if iteration_stats is None else updates(iteration_stats)
            if scheduler_stats is not None:
                now = dict.fromkeys(levels(scheduler_stats))
                found += [update for update in now if update not in self._shown]
                self._shown = now
            if found:
                self._sink(found)
        except Exception:
            self.failures += 1
            if self.failures == 1:
                log.exception("vLLM's statistics cannot be read; later failures are only counted")

    def log(self) -> None:
        """Of vLLM's interface; nothing to do."""

    def log_engine_initialized(self) -> None:
        """Of vLLM's interface; nothing to do."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """Of vLLM's interface; nothing to do."""

    def record_admission_rejection(self, *_: Any, **__: Any) -> None:
        """Of vLLM's interface; nothing to do."""


def factory(sink: Sink) -> Callable[..., StatLogger]:
    """What vLLM takes in its list of stat loggers: makes one per engine."""

    def make(vllm_config: Any, engine_index: int = 0) -> StatLogger:
        return StatLogger(sink)

    return make


def levels(scheduler: Any) -> list[Update]:
    """The gauges that one ``SchedulerStats`` sets."""
    waiting = scheduler.num_waiting_reqs + getattr(scheduler, "num_skipped_waiting_reqs", 0)
    return [
        Update(ENGINE_REQUESTS, (scheduler.num_running_reqs,), (("state", "running"),)),
        Update(ENGINE_REQUESTS, (waiting,), (("state", "waiting"),)),
        Update(KV_CACHE, (scheduler.kv_cache_usage,)),
    ]


def updates(step: Any) -> list[Update]:
    """The updates that one ``IterationStats`` makes; none for what did not move."""
    finished = step.finished_requests
    values: dict[str, Sequence[float]] = {
        names.PROMPT_TOKENS: _moved(step.num_prompt_tokens),
        names.GENERATION_TOKENS: _moved(step.num_generation_tokens),
        # Copies: the lists are vLLM's.
        names.TIME_TO_FIRST_TOKEN: tuple(step.time_to_first_tokens_iter),
        names.TIME_PER_OUTPUT_TOKEN: tuple(step.inter_token_latencies_iter),
        names.REQUEST_LATENCY: tuple(request.e2e_latency for request in finished),
        names.REQUEST_PROMPT_TOKENS: tuple(request.num_prompt_tokens for request in finished),
        names.REQUEST_GENERATION_TOKENS: tuple(
            request.num_generation_tokens for request in finished
        ),
        names.REQUEST_N: tuple(step.n_params_iter),
    }
    return [Update(name, moved) for name, moved in values.items() if moved]


def _moved(count: int) -> Sequence[float]:
    return (count,) if count else ()
