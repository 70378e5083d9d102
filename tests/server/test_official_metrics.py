"""The ``vllm:*`` metrics of Triton's official vLLM backend, asked of a running server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from python_backend.metrics import WRITE_EVERY_S
from python_backend.vllm_metrics import families
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import expect_error, sampling

PROMPT = "The capital of France is"
PROMPT_TOKENS = 5
ANSWER_TOKENS = 4
MODEL_LEN = 1024


class Metrics:
    """What moved on the metrics endpoint since this was made."""

    def __init__(self, server: Server) -> None:
        self._url = f"http://127.0.0.1:{server.ports[2]}/metrics"
        self._before = self.samples()

    def families(self) -> dict[str, Any]:
        text = httpx.get(self._url, timeout=10).text
        found = {f.name: f for f in text_string_to_metric_families(text)}
        return {name: f for name, f in found.items() if name.startswith("vllm:")}

    def samples(self) -> dict[str, float]:
        """Every sample of ours, without the buckets; all must carry the model's labels."""
        found = {}
        for family in self.families().values():
            for sample in family.samples:
                if "le" not in sample.labels:
                    assert sample.labels == {"model": "vllm_lora", "version": "1"}
                    found[sample.name] = sample.value
        return found

    def moved(self) -> dict[str, float]:
        return {n: v - self._before[n] for n, v in self.samples().items() if v != self._before[n]}

    def wait(self, done: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """The differences once ``done`` (responses overtake the metrics), or after a while."""
        deadline = time.monotonic() + 5
        while not done(moved := self.moved()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return moved


@pytest.fixture
def metrics(server: Server) -> Iterator[Metrics]:
    """Nothing of earlier tests moves any more."""
    before = Metrics(server)
    time.sleep(2 * WRITE_EVERY_S)
    while before.moved():
        before = Metrics(server)
        time.sleep(2 * WRITE_EVERY_S)
    yield before


def test_the_official_metrics_and_no_others(metrics: Metrics) -> None:
    found = {(f.name, f.type, f.documentation, _bounds(f)) for f in metrics.families().values()}
    assert found == {
        (f.name.removesuffix("_total"), f.kind, f.help, f.buckets) for f in families(MODEL_LEN)
    }
    assert {name for name, *_ in found} == {
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:time_to_first_token_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:request_params_n",
    }


def _bounds(family: Any) -> tuple[float, ...]:
    bounds = [float(s.labels["le"]) for s in family.samples if "le" in s.labels]
    assert bounds == [] or bounds.pop() == float("inf")
    return tuple(bounds)


def test_metrics_count_what_was_asked(metrics: Metrics, client: Client) -> None:
    requests = 3
    for _ in range(requests):
        client.infer_grpc(text_input=PROMPT, sampling_parameters=sampling())
    moved = metrics.wait(lambda m: m.get("vllm:request_params_n_count") == requests)
    seconds = {name: moved.pop(name) for name in list(moved) if name.endswith("_seconds_sum")}
    assert moved == {
        "vllm:prompt_tokens_total": PROMPT_TOKENS * requests,
        "vllm:generation_tokens_total": ANSWER_TOKENS * requests,
        "vllm:time_to_first_token_seconds_count": requests,
        "vllm:time_per_output_token_seconds_count": (ANSWER_TOKENS - 1) * requests,
        "vllm:e2e_request_latency_seconds_count": requests,
        "vllm:request_prompt_tokens_count": requests,
        "vllm:request_prompt_tokens_sum": PROMPT_TOKENS * requests,
        "vllm:request_generation_tokens_count": requests,
        "vllm:request_generation_tokens_sum": ANSWER_TOKENS * requests,
        "vllm:request_params_n_count": requests,
        "vllm:request_params_n_sum": requests,
    }
    first, later, whole = (
        seconds[f"vllm:{name}_seconds_sum"]
        for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency")
    )
    assert 0 < first < whole
    assert first + later == pytest.approx(whole, rel=0.5)


def test_metrics_of_several_sequences(metrics: Metrics, client: Client) -> None:
    parameters = sampling(n=2, temperature=1, max_tokens=2, ignore_eos=True)
    client.infer_grpc(text_input=PROMPT, sampling_parameters=parameters)
    moved = metrics.wait(lambda m: m.get("vllm:request_params_n_count") == 1)
    assert moved["vllm:request_params_n_sum"] == 2
    assert moved["vllm:request_generation_tokens_count"] == 2
    assert moved["vllm:generation_tokens_total"] == 4


def test_metrics_of_an_adapter_and_of_every_door(
    metrics: Metrics, server: Server, client: Client
) -> None:
    lora_id = next(iter(server.markers))
    asked = {"text_input": PROMPT, "lora_id": lora_id, "sampling_parameters": sampling()}
    client.generate("lora_generate", **asked)
    client.stream_grpc("lora_stream", **asked)
    moved = metrics.wait(lambda m: m.get("vllm:request_params_n_count") == 2)
    assert moved["vllm:e2e_request_latency_seconds_count"] == 2
    assert moved["vllm:generation_tokens_total"] == 2 * ANSWER_TOKENS


def test_a_refused_request_moves_no_metric(metrics: Metrics, client: Client) -> None:
    with expect_error("not_found"):
        client.infer_grpc(text_input=PROMPT, lora_id="fin_nobody_v1")
    time.sleep(0.3)
    assert metrics.moved() == {}
