"""Every call at a door ends once, and a cancel reaches the engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from python_backend import doors, errors
from python_backend.doors import InFlight
from tests.unit.python_backend.door_house import Caller, House, Request, at_once, until


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    for request in house.backend.requests.values():
        request.go.set()
    house.door.stop()
    assert house.door._calls == set()
    assert house.door._in_flight.count == {}


def test_pieces_go_through_in_order(house: House) -> None:
    caller = house.call(at_once(pieces=5))
    assert caller.code() == ""
    assert caller.pieces == [0, 1, 2, 3, 4]
    assert house.backend.cancelled == set()


def test_the_watcher_cancels_while_nothing_is_sent(house: House) -> None:
    caller = house.call(Request())
    until(lambda: house.backend.started == ["uid0"])
    caller.left = True
    assert caller.code() == "cancelled"
    assert (caller.pieces, house.backend.cancelled) == ([], {"uid0"})


def test_a_cancel_is_noticed_while_streaming() -> None:
    house = House(cancel_poll_s=2)
    request, caller = at_once(pieces=1_000_000), Caller()

    def leave_after_three() -> None:
        if len(caller.pieces) == 3:
            caller.left = True
            request.go.clear()

    caller.on_send = leave_after_three
    house.call(request, caller)
    assert caller.code() == "cancelled"
    assert caller.pieces == [0, 1, 2, 3]
    assert house.backend.cancelled == {"uid0"}
    house.door.stop()


def test_a_cancel_reaches_one_call_only(house: House) -> None:
    requests = [Request() for _ in range(4)]
    callers = [house.call(request) for request in requests]
    until(lambda: len(house.backend.started) == 4)
    callers[2].left = True
    assert callers[2].code() == "cancelled"
    for request in requests:
        request.go.set()
    codes = [caller.code() for caller in callers]
    assert codes == ["", "", "cancelled", ""]
    assert len(house.backend.cancelled) == 1


def test_a_cancel_that_fails_is_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.backend.cancel_error = errors.Unavailable("the engine is not ready.")
    with caplog.at_level(logging.WARNING):
        caller = house.call(Request())
        until(lambda: bool(house.backend.started))
        caller.left = True
        assert caller.code() == "cancelled"
        until(lambda: "did not reach the engine: unavailable" in caplog.text)


def test_a_caller_that_cannot_be_asked_stops_no_watch(house: House) -> None:
    first, second = house.call(Request()), house.call(Request())
    until(lambda: len(house.backend.started) == 2)
    first.left = RuntimeError("no such request")
    time.sleep(0.03)
    second.left = True
    assert second.code() == "cancelled"
    first.left = True
    assert first.code() == "cancelled"


def test_a_cap_per_department() -> None:
    house = House(max_in_flight_per_department=2)
    requests = [Request(), Request()]
    held = [house.call(request) for request in requests]
    until(lambda: len(house.backend.started) == 2)
    third = house.call(at_once())
    assert third.code() == "overloaded"
    assert third.error is not None and third.error.retry_after == 1
    # What the gate has allowed has to end at the engine, where its end is audited.
    until(lambda: house.backend.cancelled == {"uid2"})
    assert house.call(at_once(department="svc")).code() == ""
    for request in requests:
        request.go.set()
    assert [caller.code() for caller in held] == ["", ""]
    until(lambda: house.door._in_flight.count == {})
    assert house.call(at_once()).code() == ""
    house.door.stop()


def test_a_cap_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MAX_THREADS", 2)
    house = House()
    waiting = [Request(), Request()]
    for request in waiting:
        request.deciding.clear()
        request.go.set()
    held = [house.call(request) for request in waiting]
    assert house.call(at_once()).code() == "overloaded"
    for request in waiting:
        request.deciding.set()
    assert [caller.code() for caller in held] == ["", ""]
    until(lambda: not house.door._calls)
    assert house.call(at_once()).code() == ""
    house.door.stop()


def test_errors_of_gate_and_engine_are_passed_on(house: House) -> None:
    refused = house.call(at_once(refused=errors.NotFound()))
    assert refused.code() == "not_found"
    failed = house.call(at_once(error=errors.Overloaded("full.", retry_after=3)))
    assert failed.code() == "overloaded"
    assert failed.error is not None and failed.error.message == "overloaded: full. retry_after=3"
    assert house.backend.cancelled == set()


def test_what_is_not_ours_leaves_as_internal(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caller = house.call(at_once(error=RuntimeError("/dev/shm/region")))
    assert caller.code() == "internal"
    assert isinstance(caller.error, errors.Internal)
    assert "region" not in caller.error.message
    assert caller.error.error_id in caplog.text


def test_an_early_end_is_an_error(house: House) -> None:
    assert house.call(at_once(ends_early=True)).code() == "unavailable"


def test_a_caller_that_cannot_be_sent_to_ends_the_engines_work(house: House) -> None:
    caller = Caller()

    def broken() -> None:
        raise OSError

    caller.on_send = broken
    house.call(at_once(), caller)
    assert caller.code() == "internal"
    until(lambda: house.backend.cancelled == {"uid0"})


def test_stop_cancels_and_waits() -> None:
    house = House()
    callers = [house.call(Request()) for _ in range(3)]
    until(lambda: len(house.backend.started) == 3)
    undecided = Request()
    undecided.deciding.clear()
    late = house.call(undecided)
    timer = threading.Timer(0.05, undecided.deciding.set)
    timer.start()
    house.door.stop()
    assert [caller.code() for caller in (*callers, late)] == ["cancelled"] * 4
    assert house.backend.cancelled == {"uid0", "uid1", "uid2", "uid3"}
    assert len(house.backend.started) == 3
    assert house.call(at_once()).code() == "unavailable"


def test_places() -> None:
    places = InFlight(1)
    places.enter("fin")
    with pytest.raises(errors.Overloaded):
        places.enter("fin")
    places.enter("svc")
    assert places.count == {"fin": 1, "svc": 1}
    places.leave("fin")
    places.enter("fin")
    places.leave("fin")
    places.leave("svc")
    assert places.count == {}


def test_callers_of_models_that_have_died_are_answered_once_and_at_once(house: House) -> None:
    caught = [house.call(Request()) for _ in range(3)]
    until(lambda: len(house.backend.started) == 3)
    deciding = Request()
    deciding.deciding.clear()
    waiting = house.call(deciding)
    house.lost = "the process of vllm_lora (pid 7) has died"
    for caller in [*caught, waiting]:
        assert caller.code() == "unavailable"
        assert caller.error is not None and caller.error.retry_after
        assert "vllm_lora" not in caller.error.message
    assert not house.door.ready
    assert house.call(at_once()).code() == "unavailable"
    # What arrives late all the same has nobody left to go to.
    for request in house.backend.requests.values():
        request.go.set()
    deciding.deciding.set()
    until(lambda: not house.door._calls)
    assert [caller.ends for caller in [*caught, waiting]] == [1, 1, 1, 1]
    assert all(caller.pieces == [] for caller in [*caught, waiting])
    house.lost = ""
    until(lambda: house.door.ready)
    assert house.call(at_once()).code() == ""


def test_a_stop_does_not_wait_for_calls_that_a_dead_model_has_caught() -> None:
    house = House()
    caller = house.call(Request())
    until(lambda: bool(house.backend.started))
    house.lost = "dead"
    assert caller.code() == "unavailable"
    began = time.monotonic()
    house.door.stop()
    assert time.monotonic() - began < 2
    for request in house.backend.requests.values():
        request.go.set()
