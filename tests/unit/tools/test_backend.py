from __future__ import annotations

from pathlib import Path

import pytest

from tools.install import backend
from tools.install.problem import SetupProblem


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    packages = tmp_path / "site-packages"
    server = packages / "pytriton" / "tritonserver"
    for file in (
        server / "backends" / "python" / "libtriton_python.so",
        server / "python_backend_stubs" / "3.11" / backend.STUB,
    ):
        file.parent.mkdir(parents=True)
        file.write_text("new")
    return packages


def test_assemble_puts_the_stub_beside_the_backend(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "triton" / "backends"
    assert not backend.is_assembled(target)
    backend.assemble(wheel, "3.11", target)
    assert backend.is_assembled(target)
    assert [path.name for path in target.parent.iterdir()] == ["backends"], (
        "nothing half done stays"
    )


def test_assemble_replaces_what_was_there(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "triton" / "backends"
    (target / "python").mkdir(parents=True)
    (target / "python" / backend.STUB).write_text("old")
    backend.assemble(wheel, "3.11", target)
    assert (target / "python" / backend.STUB).read_text() == "new"


def test_a_python_without_stub_is_named(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupProblem, match=r"3\.12"):
        backend.assemble(wheel, "3.12", tmp_path / "triton" / "backends")
