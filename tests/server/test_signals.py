"""Signals and our own metrics, read from a running server's metrics endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from python_backend import lora_metrics
from python_backend.admission import gauges
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Refused, expect_error, sampling
from tools.__main__ import app

ENGINE = {"model": "vllm_lora", "version": "1"}
#: They have series only where there is what they tell of.
_FAMILIES = (
    *lora_metrics.ENGINE_FAMILIES,
    *lora_metrics.REQUEST_FAMILIES,
    *lora_metrics.GATE_FAMILIES,
    *gauges.FAMILIES,
)
REFUSED = ("decision", "refused")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def families(server: Server) -> dict[str, Any]:
    text = server.metrics_text()
    found = {f.name: f for f in text_string_to_metric_families(text)}
    return {name: f for name, f in found.items() if name.startswith("lora_")}


def samples(server: Server) -> Samples:
    found: Samples = {}
    for family in families(server).values():
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ENGINE}
            if "le" not in labels:
                found[sample.name, frozenset(labels.items())] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((name, frozenset(labels.items())), 0.0)


def wait(server: Server, done: Callable[[Samples], bool], limit_s: float = 10.0) -> Samples:
    deadline = time.monotonic() + limit_s
    while not done(found := samples(server)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert done(found), found
    return found


def ask(client: Client, lora_id: str | None, **fields: Any) -> None:
    if lora_id is not None:
        fields["lora_id"] = lora_id
    client.infer_grpc(text_input="Hi", sampling_parameters=sampling(max_tokens=1), **fields)


def test_every_family_is_there_with_its_help_and_the_model(server: Server, client: Client) -> None:
    ask(client, next(iter(server.markers)))
    wait(server, lambda found: value(found, "lora_activations_total") > 0)
    found = families(server)
    for family in _FAMILIES:
        shown = found.get(family.name.removesuffix("_total"))
        if shown is None:
            # They have a series once somebody has had to wait or has asked for a mixture, and
            # where there is a GPU.
            late = ("lora_gpu_", "lora_fusion")
            assert family in gauges.FAMILIES or family.name.startswith(late)
            continue
        assert (shown.type, shown.documentation) == (family.kind, family.help)
        for sample in shown.samples:
            assert sample.labels["model"] in ("vllm_lora", "lora_gate")
            assert set(sample.labels) - {"le"} == {"model", "version", *family.labels}


def test_a_request_is_counted_by_department_and_adapter(server: Server, client: Client) -> None:
    lora_id = list(server.markers)[1]
    before = samples(server)
    for _ in range(3):
        ask(client, lora_id)
    adapter = {"lora_id": lora_id}
    asked = value(before, "lora_adapter_requests_total", **adapter) + 3
    found = wait(server, lambda now: value(now, "lora_adapter_requests_total", **adapter) == asked)
    departments = {dict(labels).get("department") for _, labels in found}
    moved = [
        value(found, "lora_requests_total", department=str(d), outcome="ok")
        - value(before, "lora_requests_total", department=str(d), outcome="ok")
        for d in departments
    ]
    assert sorted(moved)[-1] == 3
    allowed = {"decision": "allowed", "reason": "policy"}
    name = "lora_gate_decisions_total"
    wait(server, lambda now: value(now, name, **allowed) - value(before, name, **allowed) >= 3)


def test_adapters_taking_turns_are_switches(server: Server, client: Client) -> None:
    before = samples(server)
    markers = list(server.markers)
    for lora_id in markers:
        ask(client, lora_id)
    switches = value(before, "lora_switches_total")

    def seen(now: Samples) -> bool:
        loads = value(now, "lora_load_duration_seconds_count", tier="host")
        return value(now, "lora_switches_total") > switches and loads >= len(markers)

    found = wait(server, seen)
    slots = value(found, "lora_resident_adapters", tier="slot")
    assert 0 < slots < len(markers)
    assert value(found, "lora_resident_adapters", tier="host") >= slots
    assert value(found, "lora_memory_bytes", pool="adapters", kind="budget") > 0
    assert 0 < value(found, "lora_memory_fragmentation_ratio", pool="heap") < 1
    assert value(found, "lora_adapters", state="ready") >= len(markers)


def test_the_slots_hold_what_they_should(server: Server, client: Client) -> None:
    lora_id = next(iter(server.markers))
    before = samples(server)
    name = "lora_route_checks_total"
    right = value(before, name, result="right")

    def checked(found: Samples) -> bool:
        ask(client, lora_id)
        return value(found, name, result="right") > right + 2

    found = wait(server, checked)
    assert value(found, name, result="wrong") == 0
    assert value(found, "lora_route_error_ratio") == 0
    assert value(found, "lora_breaker_state", signal="routing") == 0


def odd_names() -> list[str]:
    """Fifty with characters that mean something in the text of metrics, in paths, or to nobody."""
    pieces = ["\n# HELP evil 1", '"} 1', "\\", "{a=b}", "ü" * 40, "\u202e", "../", "%00", "\t", ","]
    return [f"{before}{piece}{behind}" for piece in pieces for before, behind in _AROUND]


_AROUND = (("", ""), ("fin_", "_v1"), ("x", ""), ("", "x"), ("fin_risk_v1", ""))


def test_no_name_that_somebody_asks_for_becomes_a_label(server: Server, client: Client) -> None:
    # Once each of the reasons there are has its series.
    for name in ("no_such_v1", "odd name"):
        with pytest.raises(Refused):
            ask(client, name)
    time.sleep(1)
    before = samples(server)
    odd = odd_names()
    assert len(odd) == 50
    for name in odd:
        with pytest.raises(Refused):
            ask(client, name)
    name = "lora_gate_decisions_total"

    def refused(found: Samples) -> float:
        return sum(v for (of, labels), v in found.items() if of == name and REFUSED in labels)

    found = wait(server, lambda now: refused(now) >= refused(before) + len(odd))
    assert found.keys() == before.keys()
    shown = {
        label
        for family in families(server).values()
        for sample in family.samples
        for label in sample.labels.values()
    }
    assert not shown & set(odd)


def test_unknown_adapters_share_one_series(server: Server, client: Client) -> None:
    refused = {"decision": "refused", "reason": "not_found"}
    name = "lora_gate_decisions_total"
    with expect_error("not_found"):
        ask(client, "no_such_v1")
    before = wait(server, lambda now: value(now, name, **refused) > 0)
    for number in range(2000):
        with expect_error("not_found"):
            ask(client, f"no_such_v{number}")
    asked = value(before, name, **refused) + 2000
    after = wait(server, lambda now: value(now, name, **refused) >= asked)
    assert after.keys() == before.keys()


def test_top_reads_it_all(server: Server, client: Client) -> None:
    ask(client, next(iter(server.markers)))
    address = f"127.0.0.1:{server.ports[2]}"
    wait(server, lambda found: value(found, "lora_resident_adapters", tier="slot") > 0)
    done = CliRunner().invoke(app, ["top", "--once", "--json", "--metrics", address])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.output)
    assert shown["adapters"]["ready"] >= len(server.markers)
    assert shown["tiers"]["slot"] > 0
    assert {name: row["state"] for name, row in shown["signals"].items()}.keys() == {
        "switch_rate",
        "fragmentation",
        "load_latency",
        "routing",
    }
    assert shown["signals"]["routing"]["state"] == "closed"
    assert sum(row["requests"] for row in shown["departments"].values()) > 0


def test_this_vllm_lacks_nothing(server: Server) -> None:
    assert samples(server)[lora_metrics.MISSING, frozenset()] == 0.0
