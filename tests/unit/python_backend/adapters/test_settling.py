from __future__ import annotations

from python_backend.adapters.settling import Changes, Fingerprint, Settling

ONE: Fingerprint = (("adapter_config.json", 10, 1, 7),)
TWO: Fingerprint = (("adapter_config.json", 10, 2, 7),)


def test_a_folder_is_judged_once_it_has_been_at_rest() -> None:
    settling = Settling(settle_s=1.0)
    assert settling.observe({"a_b_v1": ONE}, 10.0) == Changes((), (), True)
    assert settling.observe({"a_b_v1": ONE}, 10.9) == Changes((), (), True)
    assert settling.observe({"a_b_v1": ONE}, 11.0) == Changes(("a_b_v1",), (), False)


def test_a_change_starts_the_wait_again() -> None:
    settling = Settling(settle_s=1.0)
    settling.observe({"a_b_v1": ONE}, 10.0)
    assert settling.observe({"a_b_v1": TWO}, 10.9) == Changes((), (), True)
    assert settling.observe({"a_b_v1": TWO}, 11.8) == Changes((), (), True)
    assert settling.observe({"a_b_v1": TWO}, 11.9) == Changes(("a_b_v1",), (), False)


def test_a_judged_folder_is_left_alone_until_it_changes() -> None:
    settling = Settling(settle_s=1.0)
    settling.judged("a_b_v1", ONE)
    assert settling.observe({"a_b_v1": ONE}, 10.0) == Changes((), (), False)
    assert settling.observe({"a_b_v1": TWO}, 11.0) == Changes((), (), True)
    # Back to what was judged: nothing to do.
    assert settling.observe({"a_b_v1": ONE}, 12.5) == Changes((), (), False)


def test_a_folder_that_has_gone_is_told_once() -> None:
    settling = Settling(settle_s=1.0)
    settling.judged("a_b_v1", ONE)
    assert settling.observe({}, 10.0) == Changes((), ("a_b_v1",), False)
    assert settling.observe({}, 11.0) == Changes((), (), False)


def test_one_that_vanishes_while_it_is_written_is_forgotten() -> None:
    settling = Settling(settle_s=1.0)
    settling.observe({"a_b_v1": ONE}, 10.0)
    assert settling.observe({}, 10.5) == Changes((), (), False)
    assert settling.observe({"a_b_v1": ONE}, 12.0) == Changes((), (), True)


def test_a_passing_failure_is_judged_again() -> None:
    settling = Settling(settle_s=1.0)
    settling.judged("a_b_v1", ONE)
    settling.again("a_b_v1")
    assert settling.observe({"a_b_v1": ONE}, 10.0) == Changes((), (), True)
    assert settling.observe({"a_b_v1": ONE}, 11.0) == Changes(("a_b_v1",), (), False)
    settling.judged("a_b_v1", ONE)
    settling.again("a_b_v1")
    assert settling.observe({}, 12.0).gone == ("a_b_v1",)
