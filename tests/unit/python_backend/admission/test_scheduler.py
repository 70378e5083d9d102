"""Who enters next, case by case."""

from __future__ import annotations

import pytest

from python_backend.admission.limits import Limits, Share
from tests.unit.python_backend.admission.world import World


def limits(seats: int = 4, slots: int = 2, **more: float) -> Limits:
    options = {"reserve_seats": 0, "reserve_slots": 0, "patience": seats, **more}
    return Limits(seats, slots, **options)  # type: ignore[arg-type]


def test_one_department_is_served_in_order() -> None:
    world = World(limits(seats=2))
    sent = [world.send("fin") for _ in range(6)]
    world.finish()
    assert world.entered == sent


def test_the_department_that_has_had_least_comes_first() -> None:
    world = World(limits(seats=1))
    for _ in range(4):
        world.send("fin", length=8)
    for _ in range(8):
        world.send("svc", length=3)
    world.finish()
    # 5 + 2·8 = 21 against 5 + 2·3 = 11: about two of svc for each of fin.
    assert "".join(r.department[0] for r in world.entered) == "fssfssfssfss"


def test_weights() -> None:
    world = World(limits(seats=4), {"fin": Share(3.0), "svc": Share(1.0)})

    def again(request: object) -> None:
        world.send(request.department, length=4)  # type: ignore[attr-defined]

    for _ in range(24):
        world.send("fin")
        world.send("svc")
    world.on_end = again
    world.run(400)
    assert world.service["fin"] / world.service["svc"] == pytest.approx(3, rel=0.05)


def test_idleness_earns_no_credit() -> None:
    world = World(limits(seats=1))
    for _ in range(50):
        world.send("fin")
    world.run(60)
    for _ in range(50):
        world.send("svc")
    before = len(world.entered)
    world.run(80)
    share = [r.department for r in world.entered[before:]]
    assert abs(share.count("fin") - share.count("svc")) <= 1


def test_requests_of_an_adapter_enter_together() -> None:
    world = World(limits(seats=4, slots=1))
    for _ in range(4):
        for adapter in (1, 2, 3):
            world.send("fin", adapter)
    world.finish()
    assert [r.adapter for r in world.entered] == [1] * 4 + [2] * 4 + [3] * 4
    assert world.scheduler.switches == 2


def test_a_waiting_adapter_gets_a_slot_although_others_keep_coming() -> None:
    """C30: a stream of requests for one adapter, without a gap, in front of a full slot."""
    world = World(limits(seats=4, slots=1, patience=4))
    for length in (1, 2, 3, 4):
        world.send("fin", 1, length=length)
    world.admit()
    world.on_end = lambda request: world.send("fin", request.adapter)
    other = world.send("fin", 2)
    world.run(12)
    assert other in world.entered
    assert world.waits[other] <= 4 + 4


def test_base_is_not_held_up_by_an_adapter_that_waits() -> None:
    world = World(limits(seats=4, slots=1, patience=100))
    world.send("fin", 1, length=50)
    world.admit()
    world.send("fin", 2)
    base = [world.send("fin"), world.send("fin"), world.send("fin")]
    assert world.admit() == base


def test_an_adapter_with_a_slot_passes_one_without_until_that_is_late() -> None:
    world = World(limits(seats=1, slots=2, affinity=3, patience=10))
    for adapter in (1, 2):
        world.send("fin", adapter, length=1)
    world.run(2)
    for adapter in (3, 1, 1, 2, 2, 1):
        world.send("fin", adapter, length=1)
    world.finish()
    assert [r.adapter for r in world.entered[2:]] == [1, 1, 2, 3, 2, 1]


def test_the_reserve_is_for_departments_with_nothing_in_the_engine() -> None:
    world = World(limits(seats=2, slots=2, reserve_seats=1, reserve_slots=1))
    world.send("svc", 9, length=1)
    world.run(1)
    for adapter in (1, 2, 1, 2):
        world.send("fin", adapter, length=20)
    # One slot stays free for svc, which is expected back.
    assert [r.adapter for r in world.admit()] == [1, 1]
    victim = world.send("svc", 9, length=1)
    assert world.admit() == [victim]
    assert world.scheduler.switches == 0


def test_a_department_that_is_alone_has_all_slots() -> None:
    world = World(limits(seats=4, slots=2, reserve_slots=1))
    for adapter in (1, 2):
        world.send("fin", adapter, length=9)
    assert len(world.admit()) == 2


def test_nobody_is_expected_for_ever() -> None:
    world = World(limits(seats=4, slots=2, reserve_slots=1, memory_s=10.0))
    world.send("svc", 9, length=1)
    world.run(1)
    world.now_s = 12.0
    for adapter in (1, 2):
        world.send("fin", adapter, length=9)
    assert len(world.admit()) == 2


def test_the_last_slot_is_never_kept() -> None:
    world = World(limits(seats=2, slots=1, reserve_slots=5))
    world.send("svc", 9, length=1)
    world.run(1)
    sent = [world.send("fin", 1), world.send("fin", 1)]
    assert world.admit() == sent


def test_n_takes_n_seats_and_they_are_saved_up() -> None:
    world = World(limits(seats=4, patience=3))
    for length in (3, 4, 5, 6):
        world.send("fin", length=length)
    world.admit()
    wide = world.send("fin", seats=4, length=2)
    world.on_end = lambda request: world.send("fin", length=4)
    world.run(20)
    assert wide in world.entered
    assert world.waits[wide] <= 3 + 4


def test_more_sequences_than_seats_take_all_seats() -> None:
    world = World(limits(seats=4))
    wide = world.send("fin", seats=9)
    assert world.admit() == [wide]
    world.finish()


def test_concurrency() -> None:
    shares = {"fin": Share(concurrency=2), "svc": Share(concurrency=1)}
    world = World(limits(seats=8), shares)
    for _ in range(5):
        world.send("fin", length=2)
    wide = world.send("svc", seats=3)
    assert sorted(r.department for r in world.admit()) == ["fin", "fin", "svc"]
    assert wide in world.running
    world.finish()


def test_a_department_that_has_vanished_from_the_policy() -> None:
    world = World(limits(seats=1), {"fin": Share(5.0)})
    for _ in range(5):
        world.send("fin")
    world.admit()
    world.scheduler.set_shares({})
    world.finish()
    assert len(world.entered) == 5


def test_departments_are_forgotten() -> None:
    world = World(limits(memory_s=10.0))
    for number in range(100):
        world.send(f"d{number}", length=1)
        world.run(1)
    assert len(world.scheduler.departments()) <= 12


def test_the_engine_is_right_about_its_slots() -> None:
    world = World(limits(seats=4, slots=3))
    for adapter in (1, 2, 3):
        world.send("fin", adapter, length=1 if adapter > 1 else 9)
    world.run(1)
    slots = world.scheduler.slots
    slots.correct([7, 8, 9, 1])
    assert list(slots.resident()) == [8, 9, 1]  # 1 is in flight, whatever was found
    slots.correct([])
    assert list(slots.resident()) == [1]
    assert slots.untouched
    world.finish()


def test_what_comes_next_is_known() -> None:
    world = World(limits(seats=2, slots=1))
    for adapter in (1, 2, 3, 2, 4):
        world.send("fin", adapter)
    world.admit()
    assert world.scheduler.next_adapters(2) == [2, 3]


def test_the_reserve_is_not_closed_by_an_overdue_request_of_another_department() -> None:
    """Not even where the newcomer's department has had a little more by then."""
    world = World(limits(seats=2, slots=3, reserve_seats=1, patience=1))
    world.send("svc", 9, length=9)
    world.run(10)
    for _ in range(8):
        world.send("fin", 1, length=20)
    for _ in range(3):
        world.send("qa", length=1)
        world.run(1)
    fin, svc = world.scheduler.department("fin"), world.scheduler.department("svc")
    svc.counter = fin.counter + 1
    newcomer = world.send("svc", 9)
    assert world.admit() == [newcomer]
