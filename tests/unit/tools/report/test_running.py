"""``tools report --run``: which runs it makes, and what it refuses before the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.configurations import CONFIGURATIONS, PROTECTED
from loadtests.scenario import Options
from tests.unit.tools.report import folders
from tests.unit.tools.report.folders import UNPROTECTED, request
from tests.unit.tools.report.test_report_command import call, refused_with
from tools.report import order, running
from tools.report.figures import Report


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Options]]:
    """The runs asked for; each leaves a folder."""
    seen: list[tuple[str, Options]] = []

    def run(name: str, options: Options, out: Path) -> Path:
        seen.append((name, options))
        on = CONFIGURATIONS[options.configuration]
        changed = {"configuration": options.configuration, "protections": on}
        return folders.write(out, [request(t) for t in range(4)], **changed)

    monkeypatch.setattr(running, "run_scenario", run)
    return seen


def test_both_are_run(ran: list[tuple[str, Options]], tmp_path: Path) -> None:
    arguments = ("--run", "zipf", "--size", "seconds=20", "--faults", "kill_engine@5")
    done = call(*arguments, "--out", tmp_path, "--goal", 60)
    assert done.exit_code == 0, done.output
    assert [(name, o.configuration, o.size, o.faults) for name, o in ran] == [
        ("zipf", "unprotected", {"seconds": 20.0}, "kill_engine@5"),
        ("zipf", "protected", {"seconds": 20.0}, "kill_engine@5"),
    ]
    made = Report.model_validate_json((tmp_path / "report.json").read_text("utf-8"))
    assert [one.label for one in made.sides] == ["unprotected", "protected"]
    assert len(made.costs) == 1


def test_each_protection_has_a_run(ran: list[tuple[str, Options]], tmp_path: Path) -> None:
    assert call("--run", "zipf", "--each", "--out", tmp_path, "--goal", 60).exit_code == 0
    assert {options.configuration for _, options in ran} == CONFIGURATIONS.keys()
    made = Report.model_validate_json((tmp_path / "report.json").read_text("utf-8"))
    singles = [cost.protections for cost in made.costs if len(cost.protections) == 1]
    assert {name for (name,) in singles} == CONFIGURATIONS[PROTECTED].keys()


def test_the_protections_that_decide_the_order_exist() -> None:
    known = CONFIGURATIONS[PROTECTED].keys()
    assert {order.FAIR_QUEUE, order.RESERVE, order.SMALL_STEPS} <= known
    assert UNPROTECTED["configuration"] in CONFIGURATIONS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name two results folders, or --run SCENARIO"),
        (("--run", "isolatoin"), "isolatoin"),
        (("--run", "zipf", "--size", "speed=3"), "--size speed=3: no such size; seconds, rate"),
        (("--run", "zipf", "--size", "rate"), "--size rate: must be NAME=NUMBER"),
        (("--run", "zipf", "--demo", "nowhere"), "nowhere is no demo folder"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    refused_with(call(*arguments, "--out", tmp_path / "out"), [said])
