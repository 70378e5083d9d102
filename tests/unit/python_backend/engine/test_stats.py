"""The stat logger: vLLM's statistics as updates, and no exception ever."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from python_backend.engine import stats
from python_backend.metrics import Update


def step(**fields: Any) -> SimpleNamespace:
    """An ``IterationStats`` by shape."""
    nothing: dict[str, Any] = {
        "num_prompt_tokens": 0,
        "num_generation_tokens": 0,
        "time_to_first_tokens_iter": [],
        "inter_token_latencies_iter": [],
        "finished_requests": [],
        "n_params_iter": [],
    }
    return SimpleNamespace(**{**nothing, **fields})


def test_what_moved_and_nothing_else() -> None:
    done = SimpleNamespace(e2e_latency=1.5, num_prompt_tokens=5, num_generation_tokens=4)
    found = stats.updates(
        step(
            num_prompt_tokens=5,
            num_generation_tokens=2,
            time_to_first_tokens_iter=[0.1],
            inter_token_latencies_iter=[0.02, 0.03],
            finished_requests=[done],
            n_params_iter=[1],
        )
    )
    assert {update.name: tuple(update.values) for update in found} == {
        "vllm:prompt_tokens_total": (5,),
        "vllm:generation_tokens_total": (2,),
        "vllm:time_to_first_token_seconds": (0.1,),
        "vllm:time_per_output_token_seconds": (0.02, 0.03),
        "vllm:e2e_request_latency_seconds": (1.5,),
        "vllm:request_prompt_tokens": (5,),
        "vllm:request_generation_tokens": (4,),
        "vllm:request_params_n": (1,),
    }
    assert {update.labels for update in found} == {()}
    assert stats.updates(step()) == []


def test_one_call_of_the_sink_per_step() -> None:
    seen: list[Sequence[Update]] = []
    logger = stats.factory(seen.append)(None, 0)
    logger.record(None, step(num_generation_tokens=1, inter_token_latencies_iter=[0.1] * 16))
    logger.record(scheduler_stats=None, iteration_stats=None, mm_cache_stats=None, engine_idx=0)
    assert len(seen) == 1


@pytest.mark.parametrize("broken", [SimpleNamespace(), 3, step(finished_requests=[object()])])
def test_statistics_of_another_shape_do_not_raise(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logger = stats.StatLogger(lambda _: None)
    for _ in range(3):
        logger.record(None, broken)
    assert logger.failures == 3
    assert len(caplog.records) == 1


def test_a_sink_that_raises_does_not_raise_here() -> None:
    def sink(_: Sequence[Update]) -> None:
        raise RuntimeError("no")

    logger = stats.StatLogger(sink)
    logger.record(None, step(num_generation_tokens=1))
    assert logger.failures == 1


def test_the_rest_of_vllms_interface() -> None:
    logger = stats.StatLogger(lambda _: None)
    logger.log()
    logger.log_engine_initialized()
    logger.record_sleep_state(1, level=1)
    logger.record_admission_rejection("capacity")


def test_levels_are_reported_when_they_change() -> None:
    seen: list[Sequence[Update]] = []
    logger = stats.StatLogger(seen.append)
    scheduler = SimpleNamespace(num_running_reqs=2, num_waiting_reqs=1, kv_cache_usage=0.25)
    logger.record(scheduler, None)
    logger.record(scheduler, step())
    scheduler.num_skipped_waiting_reqs = 3
    logger.record(scheduler, None)
    assert [[(u.labels, u.values) for u in found] for found in seen] == [
        [((("state", "running"),), (2,)), ((("state", "waiting"),), (1,)), ((), (0.25,))],
        [((("state", "waiting"),), (4,))],
    ]
