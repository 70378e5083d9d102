"""When a server is dead, when it is started again, and when no more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from python_backend import presence
from tools import serve
from tools.serving import probe as probes
from tools.serving.backoff import WINDOW_S, Backoff
from tools.serving.life import HUNG_S, Hung
from tools.serving.probe import UNREADY_LIMIT_S, Probe, Sight, verdict
from tools.serving.problem import ServeProblem, StartCrash


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff(failures=9)
    assert [backoff.after_failure(0) for _ in range(9)] == [1, 2, 4, 8, 16, 30, 30, 30, None]


def test_five_failures_in_ten_minutes_are_enough() -> None:
    backoff = Backoff()
    assert [backoff.after_failure(at) for at in (0, 100, 200, 300, 599)] == [1, 2, 4, 8, None]


def test_a_server_that_ran_well_starts_with_a_clean_sheet() -> None:
    backoff = Backoff()
    assert [backoff.after_failure(at * WINDOW_S) for at in range(9)] == [1] * 9
    slow = Backoff()
    assert None not in [slow.after_failure(at * WINDOW_S / 4) for at in range(20)]


@pytest.mark.parametrize(
    ("sight", "reason"),
    [
        (Sight(), None),
        (Sight(unready_s=UNREADY_LIMIT_S), None),
        (Sight(unready_s=UNREADY_LIMIT_S + 1), "the server has not been ready for 31 s"),
        (Sight(lost=("a has died", "b has died")), "a has died; b has died"),
        (Sight(exit_code=-9), "tritonserver died (signal 9)"),
        # Its processes end with it: which of them is gone already says nothing.
        (Sight(exit_code=0, lost=("a has died",)), "tritonserver died (exit code 0)"),
    ],
)
def test_verdicts(sight: Sight, reason: str | None) -> None:
    assert verdict(sight) == reason


def test_a_probe_asks_rarely_and_looks_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = [0.0], []
    monkeypatch.setattr(probes.time, "monotonic", lambda: now[0])

    def is_ready() -> bool:
        asked.append(now[0])
        return now[0] < 10

    # The server of this "model" is the parent of this process, as it is of a stub.
    probe = Probe(tmp_path, os.getppid(), lambda: None, is_ready)
    seen = {}
    while now[0] < 60 and not seen:
        now[0] += 0.25
        if why := probe.look():
            seen[now[0]] = why
    assert seen == {40.0: "the server has not been ready for 32 s"}
    assert asked == [2.0 * n for n in range(1, 21)]

    fresh = Probe(tmp_path, os.getppid(), lambda: None, lambda: True)
    record = presence.Presence(tmp_path, "lora_gate")
    assert fresh.look() is None
    record.fail("out of ideas")
    assert fresh.look() == "lora_gate: out of ideas"


class Lives:
    """Stands for ``live``: what each life ends with."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)

    def __call__(self, *_: Any) -> str | None:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


class Told:
    def __init__(self) -> None:
        self.restarts: list[tuple[str, float]] = []
        self.show = self

    def restarting(self, why: str, delay_s: float) -> None:
        self.restarts.append((why, delay_s))


class NoSignals:
    def wait(self, _: float) -> bool:
        return False


def run(monkeypatch: pytest.MonkeyPatch, lives: Lives, backoff: Backoff | None) -> Told:
    told = Told()
    monkeypatch.setattr(serve, "live", lives)
    monkeypatch.setattr(serve, "Signals", NoSignals)
    try:
        serve._run(told, backoff)  # type: ignore[arg-type]
    finally:
        assert lives.ends == []
    return told


def test_a_stop_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, Lives(None), None).restarts == []


def test_without_restart_a_death_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServeProblem, match="the engine has died"):
        run(monkeypatch, Lives("the engine has died"), None)


def test_a_first_start_that_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServeProblem, match="wrong key"):
        run(monkeypatch, Lives(ServeProblem("wrong key")), Backoff())


def test_a_first_start_that_crashes_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run(monkeypatch, Lives(StartCrash("signal 6"), None), Backoff())
    assert told.restarts == [("signal 6", 1)]


def test_deaths_and_failed_starts_are_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = run(monkeypatch, Lives("a", ServeProblem("b"), "c", None), Backoff())
    assert told.restarts == [("a", 1), ("b", 2), ("c", 4)]


def test_it_gives_up_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServeProblem, match=r"gave up: .* the last: e"):
        run(monkeypatch, Lives(*"abcde"), Backoff())


def test_a_crash_at_the_start_gets_one_more_try_also_without_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(monkeypatch, Lives(StartCrash("hung"), None), None).restarts == [("hung", 0.0)]
    with pytest.raises(ServeProblem, match="again"):
        run(monkeypatch, Lives(StartCrash("hung"), StartCrash("hung again")), None)


def test_a_start_hangs_when_triton_says_nothing_long_after_every_model() -> None:
    hung = Hung(frozenset({"lora_gate", "vllm_lora"}))
    assert not hung.look({"lora_gate"}, 0.0)
    assert not hung.look({"lora_gate", "vllm_lora"}, 100.0)
    assert not hung.look({"lora_gate", "vllm_lora"}, 100.0 + HUNG_S - 0.1)
    assert hung.look({"lora_gate", "vllm_lora", "server"}, 100.0 + HUNG_S)
    # A model that starts again starts the wait again.
    assert not hung.look({"lora_gate"}, 200.0)
    assert not hung.look({"lora_gate", "vllm_lora"}, 300.0)
    assert not Hung(frozenset()).look({"lora_gate"}, 1e9)
