"""Each scenario sends what it says it does, and the same again for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtests.cast import Cast, Member, spares_of
from loadtests.plan import Act, Load
from loadtests.problem import LoadProblem
from loadtests.runner import sizes
from loadtests.scenario import Options, Size
from loadtests.scenarios import SCENARIOS, named
from loadtests.scenarios.churn import lives
from python_backend.adapters import naming


def load(name: str, **changes: float) -> Load:
    """The load of a scenario for a cast as its house would be."""
    scenario = SCENARIOS[name]
    size = sizes(scenario, Options(size=changes))
    members = {
        department: tuple(
            Member(department, f"{department}_w{n:04d}_v1", f"{department}word{n}")
            for n in range(1, count + 1)
        )
        for department, count in scenario.markers(size).items()
    }
    spares = {f"mark_w{n:04d}_v1": f"spare{n}" for n in range(scenario.spares(size))}
    return scenario.build(Cast(members, spares_of(spares)), size)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_seed_is_the_same_load(name: str) -> None:
    assert load(name).digest == load(name).digest
    assert load(name, seed=1).digest != load(name).digest


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("seconds", [20.0, 300.0])
def test_loads_are_in_order_and_complete(name: str, seconds: float) -> None:
    found = load(name, seconds=seconds)
    times = [call.at for call in found.arrivals]
    assert times == sorted(times)
    assert all(0 <= at < seconds for at in times)
    assert found.seconds == seconds
    assert found.arrivals or found.loops
    assert all(loop for loop in found.loops)
    # More users than loops would only share them.
    assert max(found.shape.at(t) for t in range(int(seconds))) <= len(found.loops)
    good = [call for call in found.arrivals if call.kind == "good"]
    for call in [*good, *(call for loop in found.loops for call in loop)]:
        assert call.lora_id is None or naming.is_lora_id(call.lora_id)
        assert (call.word is None) == (call.lora_id is None)


def test_isolation_begins_with_the_victim_alone() -> None:
    found = load("isolation", seconds=90.0, users=32)
    assert found.calm_s == 30.0
    assert [found.shape.at(t) for t in (0, 29, 30, 89)] == [0, 0, 32, 32]
    assert {call.department for call in found.arrivals} == {"fin"}
    assert {call.department for loop in found.loops for call in loop} == {"svc"}
    assert len({loop[0].lora_id for loop in found.loops}) == 4


def test_zipf_takes_all_departments() -> None:
    found = load("zipf", seconds=600.0)
    departments = Counter(call.department for call in found.arrivals)
    assert departments.keys() == {"fin", "qa", "svc"}
    assert len({call.lora_id for call in found.arrivals}) == 30


def test_fairness_is_on_and_off_beside_four_times_as_much() -> None:
    found = load("fairness", seconds=240.0, rate=10.0)
    by_minute = Counter((call.department, int(call.at // 60)) for call in found.arrivals)
    assert by_minute == {
        ("fin", 0): 120, ("fin", 2): 120,
        ("svc", 0): 480, ("svc", 1): 480, ("svc", 2): 480, ("svc", 3): 480,
    }  # fmt: skip
    assert {call.tokens for call in found.arrivals} == {24}


def test_thrash_has_half_as_many_slots_as_adapters() -> None:
    found, scenario = load("thrash"), SCENARIOS["thrash"]
    assert scenario.settings(scenario.size) == {"engine": {"max_loras": 8}}
    assert len({loop[0].lora_id for loop in found.loops}) == 16


def test_cold_asks_for_each_adapter_once() -> None:
    found = load("cold", seconds=80.0)
    cold = [call for call in found.arrivals if call.at >= found.calm_s]
    warm = [call for call in found.arrivals if call.at < found.calm_s]
    assert len({call.lora_id for call in cold}) == len(cold) == len(warm)
    assert len({call.lora_id for call in warm}) == 1
    assert [call.at + found.calm_s for call in warm] == pytest.approx([call.at for call in cold])


def test_the_breakers_burst_ends() -> None:
    found = load("breaker", seconds=120.0, users=8)
    assert [found.shape.at(t) for t in (0, 20, 59, 61, 119)] == [0, 8, 8, 0, 0]
    assert {call.lora_id for call in found.arrivals} == {None}
    assert len({loop[0].lora_id for loop in found.loops}) == 8


def test_attacks_are_of_one_department_on_another() -> None:
    found = load("attack", seconds=300.0)
    kinds = Counter((call.department, call.kind) for call in found.arrivals)
    assert kinds.keys() == {("qa", "forbidden"), ("qa", "malformed"), ("fin", "good")}
    stolen = {call.lora_id for call in found.arrivals if call.kind == "forbidden"}
    assert stolen == {"fin_w0001_v1", "fin_w0002_v1", "fin_w0003_v1"}
    doors = Counter(call.user for call in found.arrivals if call.department == "qa")
    assert doors.keys() == {"grpc_stream", "http_stream", "unary"}


def test_a_life_is_add_update_remove() -> None:
    spares = spares_of({f"mark_w{n:04d}_v1": f"word{n}" for n in range(4)})
    acts, spans = lives(60.0, spares, "fin")
    name = "fin_new0_v1"
    assert acts == [
        Act(at=0, what="add", lora_id=name, marker="mark_w0000_v1"),
        Act(at=12, what="update", lora_id=name, marker="mark_w0001_v1"),
        Act(at=24, what="remove", lora_id=name),
        Act(at=30, what="add", lora_id=name, marker="mark_w0002_v1"),
        Act(at=42, what="update", lora_id=name, marker="mark_w0003_v1"),
        Act(at=54, what="remove", lora_id=name),
    ]
    assert [(start, end, member.word) for start, end, member in spans] == [
        (6, 12, "word0"),
        (18, 24, "word1"),
        (36, 42, "word2"),
        (48, 54, "word3"),
    ]


@pytest.mark.parametrize("name", ["churn", "soak"])
def test_what_comes_and_goes_is_asked_for_while_it_is_there(name: str) -> None:
    found = load(name, seconds=900.0)
    new = [call for call in found.arrivals if call.lora_id and "_new" in call.lora_id]
    assert len(new) > 50
    for call in new:
        before = [act for act in found.acts if act.at <= call.at and act.lora_id == call.lora_id]
        assert before[-1].what in ("add", "update")
        number = int((before[-1].marker or "")[6:10])
        assert call.word == f"spare{number}"


def test_a_soak_holds_everything() -> None:
    kinds = Counter(call.kind for call in load("soak", seconds=900.0).arrivals)
    assert kinds.keys() == {"good", "cancel", "forbidden", "malformed"}
    assert kinds["good"] > 0.8 * kinds.total()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(LoadProblem, match="'zpif': no such scenario; there are isolation, "):
        named("zpif")
    with pytest.raises(LoadProblem, match=r"--seconds: Input should be greater"):
        sizes(SCENARIOS["zipf"], Options(size={"seconds": 1}))
    assert sizes(SCENARIOS["zipf"], Options(size={"rate": 9})).rate == 9
    assert Size().rate != 9
