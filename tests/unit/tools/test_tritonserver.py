from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tools import layout, tritonserver


@pytest.fixture
def no_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tritonserver, "IMAGE_BINARY", tmp_path / "image" / "bin" / "tritonserver")


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.touch(mode=0o755)
    return path


@pytest.mark.usefixtures("no_image")
def test_the_assembled_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages, backends = tmp_path / "packages", tmp_path / "backends"
    binary = executable(tritonserver.bundled(packages))
    (backends / "python").mkdir(parents=True)
    monkeypatch.setattr(layout, "BACKENDS", backends)
    monkeypatch.setattr(tritonserver, "site_packages", lambda: packages)
    launch = tritonserver.locate({"PATH": "/none"}, {"LORA_STATE_DIR": "/state"})
    assert launch.command(["--x"]) == [str(binary), f"--backend-directory={backends}", "--x"]
    assert launch.env["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(
        packages / "nvidia_pytriton.libs"
    )
    assert launch.env["PYTHONPATH"] == f"{layout.ROOT}{os.pathsep}{packages}"
    assert launch.env["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/none"]
    assert launch.env["LORA_STATE_DIR"] == "/state"


@pytest.mark.usefixtures("no_image")
def test_an_installed_server_is_used_with_its_own_backends(tmp_path: Path) -> None:
    binary = executable(tmp_path / "opt" / "bin" / "tritonserver")
    launch = tritonserver.locate({"PATH": str(binary.parent)})
    assert launch.binary == binary
    assert launch.args == (f"--backend-directory={tmp_path / 'opt' / 'backends'}",)
    assert "LD_LIBRARY_PATH" not in launch.env


def test_the_image_s_place_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = executable(tmp_path / "image" / "bin" / "tritonserver")
    monkeypatch.setattr(tritonserver, "IMAGE_BINARY", binary)
    assert tritonserver.installed("/none") == binary


@pytest.mark.usefixtures("no_image")
def test_no_server_names_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tritonserver, "site_packages", lambda: tmp_path)
    with pytest.raises(tritonserver.ServerNotFound, match="make setup"):
        tritonserver.locate({"PATH": "/none"})
