"""The systemd unit: systemd finds nothing wrong with it, and it fits what ``serve`` promises."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from tools.layout import ROOT
from tools.serve import serve
from tools.serving.process import ORPHANS_S, PATIENCE_S, TRACKERS_S

UNIT = ROOT / "deploy" / "systemd" / "lora-serving.service"


def values() -> dict[str, str]:
    """Every key of the unit; none of its keys stands twice."""
    lines = [line for line in UNIT.read_text("utf-8").splitlines() if line and line[0] not in "#["]
    pairs = [line.split("=", 1) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict((key, value) for key, value in pairs)


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze on this machine")
    # Of this checkout: systemd looks whether the program is there.
    text = UNIT.read_text("utf-8").replace("/opt/lora-serving", str(ROOT))
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("ProtectHome=yes", "ProtectHome=no"), "utf-8")
    command = [analyze, "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_starts_serve_with_flags_that_exist() -> None:
    program, *words = shlex.split(values()["ExecStart"])
    assert program.endswith("/.venv/bin/python")
    assert words[:3] == ["-m", "tools", "serve"]
    app = typer.Typer()
    app.command()(serve)
    known = {name for option in typer.main.get_command(app).params for name in option.opts}
    flags = {word for word in words if word.startswith("--")}
    assert flags == {"--config", "--state-dir"} <= known


def test_it_comes_back_and_gives_up_on_what_never_starts() -> None:
    unit = values()
    assert unit["Restart"] == "always"
    burst, within_s = int(unit["StartLimitBurst"]), int(unit["StartLimitIntervalSec"])
    # A start that fails at once is tried again after RestartSec: the limit is reached.
    assert burst * float(unit["RestartSec"]) < within_s


def test_serve_has_the_time_it_takes_to_stop() -> None:
    unit = values()
    assert unit["KillMode"] == "mixed"
    # The last is for tritonserver's own end.
    assert float(unit["TimeoutStopSec"]) > PATIENCE_S + ORPHANS_S + TRACKERS_S + ORPHANS_S + 5


def test_it_may_write_where_its_state_lies() -> None:
    unit = values()
    assert unit["ProtectSystem"] == "strict"
    assert f"/var/lib/{unit['StateDirectory']}/state" in unit["ExecStart"]
