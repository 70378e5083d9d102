"""Faults beside a run: what is refused before it starts, and what the budget judges afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests import results
from loadtests.faults import beside, room
from loadtests.faults.house import House
from loadtests.faults.injector import Injected, Injector
from loadtests.faults.kept import kept
from loadtests.faults.kinds import KINDS, NEED_ROOM
from loadtests.faults.schedule import Planned
from loadtests.problem import LoadProblem
from loadtests.results import Change, Fault
from loadtests.scenario import Options
from tests.unit.tools.report.folders import fault, refused, request


def planned(faults: str, seconds: float = 60, **options: Any) -> list[str]:
    found = beside.planned(Options(faults=faults, **options), seconds, lambda text: None)
    return [one.kind for one in found]


def test_no_faults_unless_asked_for() -> None:
    assert planned("") == []


@pytest.mark.parametrize(
    ("faults", "options", "said"),
    [
        ("kill_motor", {}, "--faults: no fault 'kill_motor'"),
        ("kill_engine", {"server": "h:1,2,3"}, "not ours to break"),
        ("kill_engine@70", {}, "beyond the 60 s"),
    ],
)
def test_what_cannot_be(faults: str, options: Any, said: str) -> None:
    with pytest.raises(LoadProblem, match=said):
        planned(faults, **options)


def test_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "unavailable", lambda: "no namespaces")
    with pytest.raises(LoadProblem, match="--faults: no namespaces"):
        planned("disk_full")
    said: list[str] = []
    found = beside.planned(Options(faults="all"), 600, said.append)
    assert {one.kind for one in found} == KINDS.keys() - set(NEED_ROOM)
    assert said == ["left out: disk_full, shm_full: no namespaces"]


def test_what_requests_tell_is_written(tmp_path: Path) -> None:
    injector = Injector(House(tmp_path, tmp_path), [], lambda: 0.0, print)
    injector.injected.append(Injected("kill_engine", "EngineCore (pid 7)", 4.0))
    found = beside.told(injector, tmp_path, [refused(5, "unavailable"), request(30)], 40)
    assert found == tuple(results.faults(tmp_path))
    assert [(one.target, one.down) for one in found] == [("EngineCore (pid 7)", 27.0)]
    assert beside.told(None, tmp_path, [], 40) == ()


def test_the_budget_judges_what_no_fault_hurt() -> None:
    before, during, after = request(0), refused(5, "unavailable"), request(41)
    wrong = request(6, route="wrong")
    hurt = fault(4, healed=20, down=20)
    assert beside.apart([before, during, wrong, after], [hurt]) == (before, wrong, after)
    harmless = fault(4, healed=2, down=None)
    assert beside.apart([before, request(4.5)], [harmless]) == (before, request(4.5))
    changes = [
        Change(t=t, what="add", lora_id="svc_new_v1", seconds=1.5, error=None) for t in (1, 3, 30)
    ]
    assert [one.t for one in beside.changes_apart(changes, [hurt])] == [1, 30]


def judged(*faults: Fault, count: int = 1) -> list[tuple[str, float | None, bool]]:
    asked = [Planned("kill_engine", 0, 0)] * count
    return [(v.name, v.measured, v.ok) for v in beside.verdicts(asked, faults)]


def test_recovery_is_of_the_budget() -> None:
    assert beside.verdicts((), ()) == ()
    name = "faults (at least)"
    assert judged(fault(1, 30, 29)) == [(name, 1, True), ("recovery", 30, True)]
    assert judged(fault(1, 121, 9)) == [(name, 1, True), ("recovery", 121, False)]
    assert judged(fault(1, None, 9)) == [(name, 1, True), ("recovery", None, False)]
    assert judged(fault(1, 3, 2), count=2)[0] == (name, 1, False)
    assert judged(count=2) == [(name, 0, False)]


def lines(folder: Path, *records: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "lora_gate-1.jsonl").write_text(text + '{"event":"decision","uid":"torn')


def house(folder: Path, *, audit: bool = True) -> House:
    config = folder / "serving.yaml"
    settings = {"adapters": {"root": "a"}, "policy": "p", "audit": {"enabled": audit}}
    config.write_text(yaml.safe_dump(settings))
    (folder / "state" / "run").mkdir(parents=True)
    # The file systems of this very process.
    (folder / "state" / "run" / "server.pid").write_text(str(os.getpid()))
    return House(config, folder / "state")


def test_every_answer_is_in_the_audit_or_is_missed(tmp_path: Path) -> None:
    decided = [{"event": "decision", "uid": uid} for uid in ("a", "b", "refused")]
    where = house(tmp_path)
    lines(tmp_path / "state" / "audit", *decided, {"event": "completion", "uid": "a"})
    got = [request(0, uid="a"), request(1, uid="b"), refused(2, "unavailable", uid="c")]
    known, ended = kept(where, got)
    assert (known.measured, known.samples, known.ok) == (0, 2, True)
    assert (ended.measured, ended.samples, ended.ok) == (1, 2, True)
    known, _ = kept(where, [*got, request(3, uid="lost")])
    assert (known.measured, known.samples, known.ok) == (1, 3, False)


def test_without_an_audit_nothing_is_said(tmp_path: Path) -> None:
    assert kept(house(tmp_path, audit=False), [request(0, uid="a")]) == ()


def test_an_audit_that_is_gone_has_lost_everything(tmp_path: Path) -> None:
    assert kept(house(tmp_path), [request(0, uid="a")])[0].measured == 1
