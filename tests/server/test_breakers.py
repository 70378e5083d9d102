"""Each signal over its warning, over its opening and back, on a server that is really so.

One server with low thresholds, in this order: what a test leaves behind the next one may need.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server import admin_tools, test_prometheus
from tests.server.access_tools import lines_of, wait_until
from tests.server.breaking import (
    CLOSED,
    HALF_OPEN,
    OPEN,
    RATION,
    STATE,
    WARNING,
    WEIGHTS,
    House,
    breaking_house,
)
from tests.server.harness import SHM
from tests.server.test_signals import samples, value, wait


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with breaking_house(tmp_path_factory) as found:
        yield found


def copy_of(weights: bytes) -> Path | None:
    """The file in shared memory that has these bytes."""
    for path in SHM.glob(f"lora-tier-*/*/{WEIGHTS}"):
        if path.read_bytes() == weights:
            return path
    return None


def test_mislabelled_weights(house: House) -> None:
    server, (one, other, *more) = house.server, house.markers
    checks = "lora_route_checks_total"
    own, wrong = ((server.demo / "adapters" / name / WEIGHTS).read_bytes() for name in (one, other))

    def put_out() -> None:
        """Has ``one`` leave the engine; it then has a copy in shared memory."""
        time.sleep(2)  # Until then it is the hottest.
        for name in more[:4]:
            house.right(name)

    # The canary learns and checks what lies in slots; nobody asks for anything meanwhile.
    house.right(one)
    wait(server, lambda now: value(now, checks, result="right") >= 4)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(house.right, [one] * 100))
    put_out()
    wait_until(lambda: copy_of(own) is not None, 30)
    copy = copy_of(own)
    assert copy is not None
    copy.write_bytes(wrong)
    # Until the worker has hashed what it read, nobody knows; from then on nobody is answered.
    wait_until(lambda: getattr(house.refusal(one), "code", "") == "adapter_failed", 30)

    def warned() -> bool:
        house.refusal(one)
        time.sleep(0.7)
        return house.times("routing", "warning") == 1

    wait_until(warned, 30)
    wait_until(lambda: getattr(house.refusal(one), "code", "") == "breaker_open", 30)
    found = house.state("routing", OPEN)
    assert value(found, checks, result="wrong") >= 4
    assert 0 < value(found, "lora_route_error_ratio") < 1
    house.right(other)
    shown = house.breakers()
    assert f"routing/{one}@" in shown.splitlines()[1] and "open" in shown.splitlines()[1]
    copy.write_bytes(own)
    put_out()
    # Probes find it right, and a hundred of them close it.
    deadline = time.monotonic() + 60
    with ThreadPoolExecutor(4) as pool:
        while value(samples(server), STATE, signal="routing") != CLOSED:
            assert time.monotonic() < deadline
            refused = [r for r in pool.map(house.refusal, [one] * 20) if r]
            assert {r.code for r in refused} <= {"breaker_open", "adapter_failed"}, refused
            time.sleep(0.2 if refused else 0)
    house.right(one)
    assert house.times("routing", "half_open") >= 1


def test_a_slow_disk(house: House) -> None:
    """Every round asks for adapters that the engine does not hold."""
    cold = iter(house.markers * 20)

    def loads(count: int) -> None:
        for _ in range(count):
            house.refusal(next(cold))

    loads(12)
    house.state("load_latency", CLOSED)
    house.disk.takes(0.4)
    loads(10)
    found = house.state("load_latency", WARNING)
    assert 0.3 <= value(found, "lora_load_latency_seconds") < 0.6
    assert value(found, "lora_load_seconds_per_mib") > 0.3, "a marker is far smaller than a MiB"
    house.disk.takes(0.8)

    def reached(signal_state: int) -> bool:
        loads(1)
        return value(samples(house.server), STATE, signal="load_latency") == signal_state

    wait_until(lambda: reached(OPEN), 30)
    found = house.state("load_latency", OPEN)
    assert value(found, "lora_load_latency_seconds") >= 0.6
    resident = next(
        name for name, row in admin_tools.listed(house.client).items() if "slot" in row["tiers"]
    )
    refused = house.refusal(name := next(cold))
    assert refused is not None and refused.code == "breaker_open", "before anybody may probe"
    assert "load_latency" in refused.message and "retry_after=1" in refused.message
    # Those that are there go on, and what was refused is there in a moment.
    house.right(resident)
    wait_until(lambda: house.refusal(name) is None, 30)
    # Ten quick loads in a row close it, on the way of warming and of probes.
    house.disk.takes(0)
    wait_until(lambda: reached(CLOSED), 30)
    assert value(samples(house.server), "lora_breaker_refusals_total", signal="load_latency") >= 1


def test_reset_while_probes_are_let_through(house: House) -> None:
    cold = iter(house.markers * 20)
    house.disk.takes(0.65)

    def opened() -> bool:
        house.refusal(next(cold))
        return house.times("load_latency", "open") == 2

    wait_until(opened, 30)
    house.disk.takes(0)
    time.sleep(5.5)
    house.refusal(next(cold))
    house.state("load_latency", HALF_OPEN)
    assert "role admin" in house.breakers("--reset", "load_latency", who="fin")
    assert house.breakers("--reset", "load_latency/host") == "reset\n"
    house.state("load_latency", CLOSED)
    assert house.breakers("--reset", "load_latency/host") == "was closed already\n"
    lines = lines_of(house.server, event="admin_command", op="breaker_reset")
    assert [line["breaker"] for line in lines] == ["load_latency/host"] * 2


def test_copies_that_leave_memory_empty(house: House) -> None:
    """Small adapters go round: more and more of them have a copy that fills half its pages."""
    client, gauge = house.client, "lora_memory_fragmentation_ratio"
    house.state("fragmentation", CLOSED)

    def copies() -> int:
        return sum("shm" in row["tiers"] for row in admin_tools.listed(client).values())

    opened = house.times("fragmentation", "open")
    for name in house.markers * 4:
        house.right(name)
        if house.times("fragmentation", "open") > opened:
            break
        time.sleep(0.3)
    # The fullest is trimmed away at once; it closes when that has lasted.
    found = house.state("fragmentation", CLOSED)
    assert value(found, gauge, pool="shm") < 0.15
    for to in ("warning", "open", "half_open", "closed"):
        assert house.times("fragmentation", to) >= 1, to
    assert "memory that was held and not used was given back" in house.server.log.read_text()
    wait_until(lambda: copies() <= 4, 30)


def test_churn_over_the_slots(house: House) -> None:
    server, names = house.server, house.markers
    house.state("switch_rate", CLOSED, limit_s=60)

    stop = threading.Event()

    def churn(lora_id: str) -> None:
        while not stop.is_set():
            house.right(lora_id)

    # Four switches a second are over the warning and not over the opening.
    for turn in range(1, 80):
        due = time.monotonic() + 0.25
        house.right(names[turn % len(names)])
        if house.times("switch_rate", "warning") >= 1:
            break
        time.sleep(max(0.0, due - time.monotonic()))
    with ThreadPoolExecutor(16) as pool:
        # Four times as many adapters as there are slots, all asked for at once.
        rounds = [pool.submit(churn, name) for name in names[:16]]
        try:
            found = house.state("switch_rate", OPEN)
            assert value(found, "lora_switch_rate") >= RATION
            # One that would have to wait beyond its deadline is told so.
            refused = house.refusal(names[18], parameters={"timeout_ms": 300})
            assert refused is not None and refused.code == "breaker_open", refused
            assert "switch_rate" in refused.message and "retry_after=" in refused.message
            time.sleep(1)  # What had been let in before has shown by now.
            began, before = time.monotonic(), value(samples(server), "lora_switches_total")
            time.sleep(5)
        finally:
            stop.set()
        for one in rounds:
            one.result()
        took = time.monotonic() - began
    switched = value(samples(server), "lora_switches_total") - before
    assert RATION * took * 0.7 - 2 <= switched <= RATION * took + 3
    house.state("switch_rate", CLOSED, limit_s=60)
    for to in ("warning", "open", "half_open", "closed"):
        assert house.times("switch_rate", to) >= 1, to
    shown = json.loads(house.breakers("--json"))["breakers"]
    assert {row["state"] for row in shown if "switch_rate" in row["breaker"]} == {"closed"}


def test_prometheus_has_seen_it_and_its_alerts_have_fired(house: House) -> None:
    """The last one: with the rules of deploy/prometheus and the thresholds of the table."""
    if house.prometheus is None:
        pytest.skip("no prometheus here, and no Debian package of it to be had")
    opened = 'max by (signal) (max_over_time(lora_breaker_transitions_total{to="open"}[10m])) > 0'

    def signals_of(query: str, signals: set[str]) -> None:
        def done(data: Any) -> bool:
            return {result["metric"]["signal"] for result in data["result"]} >= signals

        assert house.prometheus is not None
        test_prometheus.wait(house.prometheus, "/query", done, query=query)

    every = {"switch_rate", "fragmentation", "load_latency", "routing"}
    signals_of(opened, every)
    # That of shared memory is open for a moment only: what opened it is dropped at once.
    firing = 'ALERTS{alertstate="firing", severity="critical", signal!=""}[10m]'
    fired = f"max by (signal) (max_over_time({firing}))"
    signals_of(fired, every - {"fragmentation"})
    names = "Lora(RouteErrors|LoadsOpen|SwitchRateOpen)"
    over = f'max by (signal) (max_over_time(ALERTS{{alertname=~"{names}"}}[10m]))'
    signals_of(over, every - {"fragmentation"})
