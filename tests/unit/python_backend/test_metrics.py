"""Metrics: what reaches the backend, and that nothing ever reaches the caller."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

import pytest

from python_backend import metrics as metrics_module
from python_backend import vllm_metrics
from python_backend.metrics import Family, MakeSeries, Metrics, MetricsOff, Update, Write

CONSTANT = {"model": "m", "version": "1"}
COUNTER = Family("c_total", "counter", "A counter.")
LABELLED = Family("q", "gauge", "A gauge.", labels=("department",))


class Recorder:
    """A backend that remembers; ``broken`` names families whose creation or writing fails."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.series: list[tuple[str, dict[str, str]]] = []
        self.written: list[tuple[str, dict[str, str], float]] = []
        self.unmakeable: set[str] = set()
        self.unwritable: set[str] = set()

    def create(self, family: Family) -> MakeSeries:
        if family.name in self.unmakeable:
            raise RuntimeError("no")
        self.created.append(family.name)

        def series(labels: Mapping[str, str]) -> Write:
            self.series.append((family.name, dict(labels)))

            def write(value: float) -> None:
                if family.name in self.unwritable:
                    raise RuntimeError("no")
                self.written.append((family.name, dict(labels), value))

            return write

        return series


class Off:
    def create(self, family: Family) -> MakeSeries:
        raise MetricsOff


def test_what_a_window_holds_is_written_as_one_with_the_constant_labels() -> None:
    backend = Recorder()
    metrics = Metrics(backend, CONSTANT)
    metrics.declare([COUNTER])
    metrics.put([Update("c_total", (1, 2)), Update("c_total", (3,))])
    metrics.stop()
    assert backend.written == [("c_total", CONSTANT, 6)]


def test_a_family_without_labels_is_shown_from_the_start_and_made_once() -> None:
    backend = Recorder()
    metrics = Metrics(backend, CONSTANT)
    metrics.declare([COUNTER, LABELLED])
    metrics.declare([COUNTER])
    metrics.put([Update("c_total", (1,))])
    metrics.stop()
    assert backend.created == ["c_total", "q"]
    assert backend.series == [("c_total", CONSTANT)]


def test_a_series_is_made_once_per_label_value() -> None:
    backend = Recorder()
    metrics = Metrics(backend, CONSTANT)
    metrics.declare([LABELLED])
    for value, department in enumerate(("fin", "qa", "fin")):
        metrics.put([Update("q", (value,), (("department", department),))])
    metrics.stop()
    assert backend.series == [
        ("q", {**CONSTANT, "department": "fin"}),
        ("q", {**CONSTANT, "department": "qa"}),
    ]
    assert [value for *_, value in backend.written] == [2, 1]


def test_metrics_off_at_the_server_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics(Off(), CONSTANT)
    metrics.declare([COUNTER, LABELLED])
    metrics.put([Update("c_total", (1,))])
    metrics.stop()
    assert caplog.messages == ["[vllm] Metrics not supported"]
    assert metrics.failures == 0
    assert not metrics.wanted


def test_metrics_not_wanted_create_nothing() -> None:
    metrics = Metrics(None, CONSTANT)
    metrics.declare([COUNTER])
    metrics.put([Update("c_total", (1,))])
    metrics.stop()
    assert not metrics.wanted


def test_a_failure_is_counted_logged_once_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Recorder()
    backend.unmakeable, backend.unwritable = {"a"}, {"b"}
    metrics = Metrics(backend, CONSTANT)
    metrics.declare([Family("a", "gauge", ""), Family("b", "gauge", ""), COUNTER])
    metrics.put([Update("a", (1,)), Update("b", (1,)), Update("c_total", (1,))])
    metrics.stop()
    assert [name for name, *_ in backend.written] == ["c_total"]
    assert metrics.failures == 1 + 1
    assert len(caplog.records) == 2


def test_a_backend_that_hangs_does_not_hold_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MAX_WAITING", 5)
    go_on = threading.Event()
    backend = Recorder()
    create = backend.create

    def hanging(family: Family) -> MakeSeries:
        make = create(family)

        def series(labels: Mapping[str, str]) -> Write:
            write = make(labels)

            def wait(value: float) -> None:
                go_on.wait(10)
                write(value)

            return wait

        return series

    monkeypatch.setattr(backend, "create", hanging)
    metrics = Metrics(backend, CONSTANT)
    metrics.declare([COUNTER])
    for _ in range(20):
        metrics.put([Update("c_total", (1,))])
    go_on.set()
    metrics.stop()
    written = sum(value for *_, value in backend.written)
    assert 5 <= written <= 6
    assert written + metrics.failures == 20


def test_after_the_stop_nothing_is_written() -> None:
    backend = Recorder()
    metrics = Metrics(backend, CONSTANT)
    metrics.declare([COUNTER])
    metrics.stop()
    metrics.put([Update("c_total", (1,))])
    metrics.stop()
    assert backend.written == []


def test_the_official_table() -> None:
    """Word for word what Triton's official vLLM backend declares."""
    tokens = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert [(f.name, f.kind, f.help, f.buckets) for f in vllm_metrics.families(1024)] == [
        ("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", ()),
        ("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", ()),
        (
            "vllm:time_to_first_token_seconds",
            "histogram",
            "Histogram of time to first token in seconds.",
            (
                *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
                *(0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
            ),
        ),
        (
            "vllm:time_per_output_token_seconds",
            "histogram",
            "Histogram of time per output token in seconds.",
            (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
        ),
        (
            "vllm:e2e_request_latency_seconds",
            "histogram",
            "Histogram of end to end request latency in seconds.",
            (1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
        ),
        ("vllm:request_prompt_tokens", "histogram", "Number of prefill tokens processed.", tokens),
        (
            "vllm:request_generation_tokens",
            "histogram",
            "Number of generation tokens processed.",
            tokens,
        ),
        (
            "vllm:request_params_n",
            "histogram",
            "Histogram of the n request parameter.",
            (1, 2, 5, 10, 20),
        ),
    ]
    assert {f.labels for f in vllm_metrics.families(1024)} == {()}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, (1,)), (4, (1, 2)), (100, (1, 2, 5, 10, 20, 50, 100)), (99, (1, 2, 5, 10, 20, 50))],
)
def test_one_two_five(limit: int, expected: tuple[int, ...]) -> None:
    assert vllm_metrics.one_two_five(limit) == expected
