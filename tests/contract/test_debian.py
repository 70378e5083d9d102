"""A program that this machine lacks comes from Debian's package and runs without root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import debian

PACKAGE = "tree"  # small, and with nothing to depend on


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one fetch has been made; not the cache, so that a fetch is really seen."""
    folder = tmp_path_factory.mktemp("debian")
    try:
        debian.fetched(PACKAGE, "tree", folder)
    except debian.UnavailableError as error:
        pytest.skip(f"no packages from Debian here: {error}")
    return folder


def test_a_fetched_program_runs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "leaf").touch()
    script = debian.fetched(PACKAGE, "tree", folder)
    assert script.is_relative_to(folder)
    done = subprocess.run([script, tmp_path], capture_output=True, text=True, check=True)
    assert "leaf" in done.stdout


def test_a_fetch_leaves_nothing_half_done(folder: Path) -> None:
    assert [entry.name for entry in (folder / "packages").iterdir()] == [PACKAGE]
    assert not list(folder.glob("tmp*"))


def test_the_programs_own_exit_code_comes_through(folder: Path) -> None:
    script = debian.fetched(PACKAGE, "tree", folder)
    assert subprocess.run([script, "--no-such-option"], stderr=subprocess.DEVNULL).returncode == 1


@pytest.mark.parametrize(
    ("package", "name", "reason"),
    [
        (PACKAGE, "shrub", "the package tree has no program of that name"),
        ("no-such-package-anywhere", "shrub", "Unable to locate package"),
    ],
)
def test_what_cannot_be_had_is_said(folder: Path, package: str, name: str, reason: str) -> None:
    with pytest.raises(debian.UnavailableError, match=reason):
        debian.fetched(package, name, folder)


def test_without_apt_the_test_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(pytest.skip.Exception) as skipped:
        debian.program(PACKAGE, "tree")
    assert str(skipped.value) == "no tree (Debian package tree): no apt-get on this machine"


def test_what_is_on_the_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "tree"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert debian.find(PACKAGE, "tree", tmp_path / "unused") == own
    assert not (tmp_path / "unused").exists()
