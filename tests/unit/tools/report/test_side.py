"""One run's figures, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.tools.report import folders
from tests.unit.tools.report.folders import GIB, fault, looks, refused, request
from tools.report.figures import Side
from tools.report.reading import load
from tools.report.side import side


def made(tmp_path: Path, *requests: Any, **more: Any) -> Side:
    return side(load(folders.write(tmp_path / "run", requests, **more)), "ours")


def test_wrong_routes_are_of_those_checked(tmp_path: Path) -> None:
    four = [request(t) for t in (0, 1, 2)] + [request(3, route="wrong")]
    got = made(tmp_path, *four, request(4, route="unchecked")).wrong_routes
    assert (got.part, got.n, got.value) == (1, 4, 0.25)
    # Wilson, 1 of 4: (0.25 + 0.4802 ∓ 1.96·sqrt(0.046875 + 0.060029)) / 1.960365
    assert got.low == pytest.approx(0.0456, abs=1e-3)
    assert got.high == pytest.approx(0.6994, abs=1e-3)


def test_none_of_many_is_not_certainly_none(tmp_path: Path) -> None:
    got = made(tmp_path, *(request(t / 100) for t in range(400))).wrong_routes
    assert (got.value, got.low) == (0.0, 0.0)
    # z² / (n + z²) = 3.8415 / 403.8415
    assert got.high == pytest.approx(0.009512, abs=1e-6)


def test_waits_begin_when_a_request_was_due(tmp_path: Path) -> None:
    # Due at 0, 1, 2, 3; sent 0.5 s late, then answered after 0.1, 0.2, 0.3, 0.4 s.
    late = [request(t, sent=t + 0.5, ttft=(t + 1) / 10) for t in range(4)]
    everybody, fin = made(tmp_path, *late).departments
    assert (everybody.name, fin.name) == ("all", "fin")
    # The value that half of the four do not exceed, as everywhere in the project: the third.
    assert (fin.ttft.n, fin.ttft.p50, fin.ttft.p99) == (4, 0.8, 0.9)
    assert (fin.total.p50, fin.total.thin) == (1.5, True)


def test_only_good_answers_count_as_waits_and_throughput(tmp_path: Path) -> None:
    got = made(
        tmp_path,
        request(0),
        request(1, department="svc", ttft=0.75),
        request(2, user="unary", ttft=None, gaps=(), total=3.0),
        refused(3, "overloaded"),
        refused(4, "not_found", kind="forbidden"),
        request(5, kind="cancel", outcome="cancelled", total=0.1),
    )
    everybody, fin, svc = got.departments
    assert (everybody.ttft.n, everybody.total.n) == (2, 3)
    assert (fin.ttft.p99, svc.ttft.p99, fin.total.p99) == (0.25, 0.75, 3.0)
    assert (fin.answered.part, fin.answered.n) == (2, 3)
    # Two answers of 8 tokens in 10 s; three answers in 10 s.
    assert (fin.tokens_per_s.value, fin.tokens_per_s.n) == (1.6, 2)
    assert (got.answers_per_s.value, got.answers_per_s.n) == (0.3, 3)
    assert [(r.kind, r.reason, r.count) for r in got.refusals] == [
        ("forbidden", "not_found", 1),
        ("good", "overloaded", 1),
    ]


def test_what_should_be_refused_and_was_answered(tmp_path: Path) -> None:
    barred = [refused(0, "not_found", kind="forbidden"), request(1, kind="forbidden")]
    got = made(tmp_path, *barred, refused(2, "invalid_argument", kind="malformed"))
    assert (got.wrongly_answered.part, got.wrongly_answered.n) == (1, 3)


def test_memory_peak_and_what_adapters_took(tmp_path: Path) -> None:
    # Sent at 1; the answers end at 2, 3 and 4: three adapters have answered at 4.
    asked = [request(t, lora_id=f"fin_risk_v{t}") for t in (1, 2, 3)]
    seen = looks((0.5, 1.0, {}), (1.5, 1.2, {}), (4.5, 1.6, {}), (9.0, 1.5, {}))
    got = made(tmp_path, *asked, samples=seen).memory
    assert (got.peak.value, got.peak.n, got.peak_at) == (int(1.6 * GIB) + GIB // 2, 4, 4.5)
    assert list(got.by_role) == ["EngineCore", "tritonserver"]
    (three,) = got.after
    # 0.6 GiB more than 1.5 GiB; the machine of 8 GiB had 6.5 GiB left.
    assert (three.adapters, three.n) == (3, 3)
    assert three.growth == int(1.6 * GIB) - GIB
    assert three.of_resident == pytest.approx(0.4)
    assert three.of_available == pytest.approx(0.6 / 6.5, abs=1e-6)


def test_ten_adapters(tmp_path: Path) -> None:
    asked = [request(t / 2, lora_id=f"fin_risk_v{t}", total=0.25) for t in range(10)]
    # The tenth ends at 4.75.
    seen = looks((0.0, 1.0, {}), (4.0, 3.0, {}), (5.0, 2.0, {}))
    got = made(tmp_path, *asked, samples=seen).memory
    assert [(one.adapters, one.growth) for one in got.after] == [(3, 2 * GIB), (10, GIB)]


def test_switches_count_on_over_a_restart(tmp_path: Path) -> None:
    name = 'lora_switches_total{model="vllm_lora",version="1"}'
    seen = looks((0, 1, {name: 5.0}), (1, 1, {name: 9.0}), (2, 0, None), (3, 1, {name: 2.0}))
    got = made(tmp_path, *(request(t) for t in range(8)), samples=seen)
    # 4 until it died, 2 since: 6 in 8 requests.
    assert (got.switches.value, got.switches.n) == (6, 3)
    assert got.switches_per_1000.value == 750


def test_breakers_over_time(tmp_path: Path) -> None:
    state, refusals = 'lora_breaker_state{signal="%s"}', 'lora_breaker_refusals_total{signal="%s"}'
    rows: list[tuple[float, float, dict[str, float] | None]] = [
        (0, 1, {state % "routing": 0.0}),
        (1, 1, {state % "routing": 0.0}),
        (2, 1, {state % "routing": 2.0, refusals % "routing": 3.0}),
        (3, 0, None),
        (4, 1, {state % "routing": 3.0, refusals % "routing": 1.0}),
    ]
    got = made(tmp_path, request(0), samples=looks(*rows))
    assert [(i.state, i.begin, i.end) for i in got.breakers] == [
        ("closed", 0, 2),
        ("open", 2, 3),
        ("server down", 3, 4),
        ("half-open", 4, 10),
    ]
    assert got.breaker_refusals == {"routing": 4}


def test_fragmentation_by_pool_has_gaps(tmp_path: Path) -> None:
    name = 'lora_memory_fragmentation_ratio{pool="%s"}'
    rows: list[tuple[float, float, dict[str, float] | None]] = [
        (0, 1, {name % "heap": 0.5}),
        (1, 0, None),
        (2, 1, {name % "heap": 0.4, name % "shm": 0.1}),
    ]
    heap, shm = made(tmp_path, request(0), samples=looks(*rows)).fragmentation
    assert (heap.name, heap.t, heap.values) == ("heap", (0, 1, 2), (0.5, None, 0.4))
    assert (shm.name, shm.values) == ("shm", (None, None, 0.1))


def test_a_fault_and_whom_it_hurt(tmp_path: Path) -> None:
    got = made(
        tmp_path,
        request(0),
        request(1.5),
        refused(2.0, "unavailable", ttft=0.1, total=1.0),
        refused(3.0, "unavailable", department="svc"),
        request(5.0),
        request(8.0),
        faults=[fault(2.6, healed=3.4, down=3.0)],
    ).recovery
    (seen,) = got.faults
    # Until 6.0: what failed at 2.6 … 3.5, and the answer that ended the wait.
    assert (seen.hurt, seen.broken_off, seen.n) == ({"fin": 1, "svc": 1}, 1, 3)
    assert (got.up.value, got.up.n) == (0.7, 1)
    assert (got.slowest.value, got.slowest.n, got.unhealed) == (3.4, 1, 0)
    # Answers ended in the seconds 1, 2, 6 and 9; in 3 two failed.
    assert (got.available.part, got.available.n) == (4, 5)
    # The answer at 2.5 was the last one; from 2.5 on somebody waited, until 6.0.
    assert (got.longest_gap.value, got.longest_gap.n) == (3.5, 4)


def test_nobody_waiting_is_no_gap(tmp_path: Path) -> None:
    got = made(tmp_path, request(0), request(7)).recovery
    assert (got.longest_gap.value, got.up.value, got.up.n) == (1.0, None, 0)


def test_a_fault_that_never_heals_lasts_to_the_end(tmp_path: Path) -> None:
    fails = [refused(t, "transport") for t in (4, 6, 9)]
    faults = [fault(3, healed=None, down=7.0)]
    got = made(tmp_path, request(0), *fails, faults=faults).recovery
    assert (got.unhealed, got.slowest.value, got.faults[0].hurt) == (1, None, {"fin": 3})
    assert got.up.value == pytest.approx(0.3)
    # From 4, when somebody asked, until 9.5.
    assert got.longest_gap.value == 5.5


def test_without_samples_there_is_no_memory(tmp_path: Path) -> None:
    got = made(tmp_path, request(0))
    assert (got.memory.peak.value, got.memory.peak.n, got.memory.after) == (None, 0, ())
    assert (got.switches.value, got.breakers, got.fragmentation) == (None, (), ())
