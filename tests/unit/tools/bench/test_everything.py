"""``bench all``: what fails stops nothing, and everything is written."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tools.bench import command, everything, plot
from tools.bench.everything import Ran, run_all, run_one
from tools.bench.figures import Figures, Promise
from tools.bench.scenario import Case, Result

FIGURES = Figures(
    "speed",
    ("case", "tok/s", "note"),
    (("base", "120.5", "x"), ("one adapter", "100.0", "")),
    (Promise("over base", 0.83, "(>= 0.80)", True), Promise("aim", 0.7, "(>= 0.9)", False)),
)
RESULT = Result("gate", (Case("few", 10, 1.5, 2.5, 1.7),), {"p99 <= 3 µs": True})


def body(of: Figures | Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(of)))
    return found


def test_the_numbers_of_a_table_by_column_and_case() -> None:
    assert plot.bars(*plot.table(body(FIGURES))) == {"tok/s": {"base": 120.5, "one adapter": 100.0}}
    assert plot.bars(*plot.table(body(RESULT)))["p99 µs"] == {"few": 2.5}
    assert plot.promises(body(FIGURES)) == [
        ("over base (>= 0.80)", "0.830", "ok"),
        ("aim (>= 0.9)", "0.700", "MISSED"),
    ]
    assert plot.promises(body(RESULT)) == [("p99 <= 3 µs", "", "ok")]


def test_one_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    outcomes = {
        "speed": Ran("speed", 3.0, body(FIGURES)),
        "zipf": Ran("zipf", 1.0, None, "no memory"),
        "gate": Ran("gate", 2.0, body(RESULT)),
    }
    said: list[str] = []
    found = run_all([*outcomes], outcomes.__getitem__, tmp_path / "out", said.append)
    assert [ran.verdict for ran in found] == ["1 missed", "failed: no memory", "ok"]
    assert said[2:4] == ["2 of 3: zipf", "  failed: no memory, 1 s"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"speed.json", "speed.html", "gate.json", "gate.html", "plotly.min.js"}
    assert json.loads((tmp_path / "out" / "gate.json").read_text()) == body(RESULT)
    assert "one adapter" in (tmp_path / "out" / "speed.html").read_text()


def test_a_scenario_is_a_process_whose_last_json_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"

    def says(script: str) -> Ran:
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        return run_one("gate", ["--quick"], 1.0)

    text = json.dumps(body(RESULT))
    found = says(f"echo start; echo '{text}'; exit 1")
    assert (found.body, found.verdict) == (body(RESULT), "ok")
    assert says("echo 'Error: no demo' >&2; exit 2").verdict == "failed: Error: no demo"
    assert says("exit 0").verdict == "failed: exit code 0"
    assert says("exec sleep 30").verdict == "failed: not done after 1 s"


def test_all_ends_in_1_where_one_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def one(name: str, arguments: list[str], limit_s: float) -> Ran:
        asked.append((name, arguments))
        return Ran(name, 1.0, None, "no") if name == "zipf" else Ran(name, 1.0, body(RESULT))

    monkeypatch.setattr(everything, "run_one", one)
    call = ["all", "--quick", "--out", str(tmp_path), "--only", "gate"]
    done = CliRunner().invoke(command.app, [*call, "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["gate"]["body"] == body(RESULT)
    done = CliRunner().invoke(command.app, [*call, "--only", "zipf"])
    assert done.exit_code == 1
    assert asked[-1] == ("zipf", ["--demo", ".demo", "--quick"])
    assert asked[0] == ("gate", ["--rounds", "1000"])
    done = CliRunner().invoke(command.app, ["all", "--only", "nothing"])
    assert done.exit_code == 2
