"""Completions as metrics, with label values from bounded sets."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from python_backend import lora_metrics
from python_backend.admission import gauges
from python_backend.completion import Completion, NoSink
from python_backend.completion_metrics import MetricsSink
from python_backend.errors import Unavailable
from python_backend.metrics import Update
from python_backend.ticket import ENGINE_AUDIENCE, Part, Ticket

FAMILIES = (
    *lora_metrics.ENGINE_FAMILIES,
    *lora_metrics.REQUEST_FAMILIES,
    *lora_metrics.GATE_FAMILIES,
    *gauges.FAMILIES,
)


def ticket(*lora_ids: str, **changes: Any) -> Ticket:
    made = Ticket(
        boot_id="b" * 32,
        audience=ENGINE_AUDIENCE,
        operation="generate",
        uid="u",
        department="fin",
        principal="fin-app",
        parts=tuple(Part(lora_id, "d" * 64) for lora_id in lora_ids),
        prompt_sha256="0" * 64,
        request_sha256="0" * 64,
        deadline_ns=1,
        expires_ns=1,
    )
    return dataclasses.replace(made, **changes)


def sink(cap: int = 200) -> tuple[MetricsSink, list[Update]]:
    seen: list[Update] = []
    return MetricsSink(NoSink(), seen.extend, cap), seen


def test_what_a_completion_moves() -> None:
    listener, seen = sink()
    done = Completion(
        ticket("fin_risk_v1"), "ok", input_tokens=5, output_tokens=7, latency_s=2.0, ttft_s=0.5
    )
    listener.record(done)
    fin = ("department", "fin")
    assert seen == [
        Update("lora_requests_total", (1,), (fin, ("outcome", "ok"))),
        Update("lora_request_duration_seconds", (2.0,), (fin,)),
        Update("lora_time_to_first_token_seconds", (0.5,), (fin,)),
        Update("lora_tokens_total", (5,), (fin, ("kind", "in"))),
        Update("lora_tokens_total", (7,), (fin, ("kind", "out"))),
        Update("lora_adapter_requests_total", (1,), (("lora_id", "fin_risk_v1"),)),
    ]


def test_who_has_no_ticket_is_nobody() -> None:
    listener, seen = sink()
    listener.record(Completion(None, "unauthenticated"))
    assert [update.labels for update in seen] == [
        (("department", "none"), ("outcome", "unauthenticated"))
    ]


@pytest.mark.parametrize("operation", ["cancel", "admin"])
def test_cancels_and_commands_are_no_requests(operation: Any) -> None:
    listener, seen = sink()
    listener.record(Completion(ticket(operation=operation), "ok"))
    assert seen == []


def test_adapters_beyond_the_cap_share_a_series() -> None:
    listener, seen = sink(cap=3)
    for number in [*range(2000), 0]:
        listener.record(Completion(ticket(f"fin_a_v{number}"), "ok"))
    listener.record(Completion(ticket(), "ok"))
    labels = [dict(u.labels)["lora_id"] for u in seen if "adapter" in u.name]
    assert set(labels) == {"fin_a_v0", "fin_a_v1", "fin_a_v2", "other"}
    assert labels[-2:] == ["fin_a_v0", "other"]


def test_the_inner_sink_decides() -> None:
    class Full(NoSink):
        def check(self) -> None:
            raise Unavailable("no", retry_after=1)

    with pytest.raises(Unavailable):
        MetricsSink(Full(), lambda updates: None).check()


def test_families_are_declared_once_with_help_and_units() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    for family in FAMILIES:
        assert re.fullmatch(r"lora_[a-z_]+", family.name)
        assert family.name.endswith("_total") is (family.kind == "counter")
        assert family.help.endswith(".")
        assert (family.kind == "histogram") is bool(family.buckets)
        if family.kind == "histogram":
            assert family.name.endswith("_seconds")
