"""Bad input is one clear line and exit code 2, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtests.__main__ import app
from loadtests.scenarios import SCENARIOS


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    return line


def test_every_scenario_is_listed() -> None:
    shown = CliRunner().invoke(app, ["list"]).output
    assert all(name in shown for name in SCENARIOS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zpif"], "error: 'zpif': no such scenario; there are isolation,"),
        (["zipf", "--configuration", "of"], "error: --configuration of: not one of protected,"),
        (["zipf", "--seconds", "1"], "error: --seconds: Input should be greater"),
        (
            ["zipf", "--demo", "/nowhere"],
            "error: /nowhere is no demo folder; `python -m tools",
        ),
        (["zipf", "--budget", "/nowhere"], "error: /nowhere: [Errno 2] No such file"),
        (["zipf", "--server", "here"], "error: --server here: must be HOST:HTTP,GRPC,METRICS"),
    ],
)
def test_bad_input(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in refused("run", *arguments, "--out", str(tmp_path / "out"))


def test_a_typo_in_the_budget(tmp_path: Path) -> None:
    file = tmp_path / "budget.toml"
    file.write_text("[zipf.at_most]\nwrong_route = 0\n")
    line = refused("run", "zipf", "--budget", str(file), "--out", str(tmp_path / "out"))
    assert line.endswith("no such measure: wrong_route; did you mean wrong_routes?")


def test_results_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    assert "is not empty; choose another" in refused("run", "zipf", "--out", str(tmp_path))


def test_results_go_where_they_are_told(tmp_path: Path) -> None:
    refused("run", "zpif", "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
