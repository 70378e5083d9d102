"""Assembles the Python backend for the tritonserver of the nvidia-pytriton wheel."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.install.interpreters import Interpreter
from tools.install.problem import SetupProblem
from tools.install.steps import CommandFailed, Steps

STEP = "assembling tritonserver"
STUB = "triton_python_backend_stub"


def is_assembled(backends: Path) -> bool:
    """Whether the backend and its stub lie there."""
    folder = backends / "python"
    return (folder / "libtriton_python.so").is_file() and (folder / STUB).is_file()


def assemble(site_packages: Path, minor: str, backends: Path) -> None:
    """Copy the wheel's backend and, beside it, the stub of Python ``minor``, whole or not at all.

    Raises:
        SetupProblem: the wheel is not there or has no stub for this Python.
    """
    wheel = site_packages / "pytriton" / "tritonserver"
    stub = wheel / "python_backend_stubs" / minor / STUB
    for needed in (wheel / "backends" / "python" / "libtriton_python.so", stub):
        if not needed.is_file():
            raise SetupProblem(STEP, f"{needed} is missing", "rm -r .venv, then make setup")
    backends.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix="new-", dir=backends.parent))
    try:
        half.chmod(0o755)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(wheel / "backends" / "python", half / "python", ignore=ignore)
        shutil.copy2(stub, half / "python" / STUB)
        if (backends / "python").exists():
            shutil.rmtree(backends / "python")
        (half / "python").replace(backends / "python")
    finally:
        shutil.rmtree(half, ignore_errors=True)


def provide_libpython(steps: Steps, base: Interpreter, target: Path) -> Path:
    """The folder of the libpython that the stub loads, fetched where the system lacks it.

    Debian and Ubuntu package it apart from Python; unpacking that package here needs no root.

    Raises:
        SetupProblem: there is none and it cannot be fetched.
    """
    if base.libpython:
        return Path(base.libpython)
    library = f"libpython{base.minor}.so.1.0"
    if (target / library).is_file():
        return target
    package = f"libpython{base.minor}"
    cure = f"apt-get install {package}, or use a Python built with --enable-shared"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise SetupProblem(STEP, f"{base.executable} has no {library}", cure)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            steps.run(["sh", "-c", f"cd '{scratch}' && apt-get download {package}"])
            (archive,) = Path(scratch).glob("*.deb")
            steps.run(["dpkg-deb", "-x", str(archive), scratch])
        except (CommandFailed, ValueError) as error:
            raise SetupProblem(STEP, f"{base.executable} has no {library}", cure) from error
        (found,) = list(Path(scratch).rglob(library))[:1] or [Path(scratch) / library]
        target.mkdir(parents=True, exist_ok=True)
        half = target / f"{library}.new"
        shutil.copy2(found, half)
        half.replace(target / library)
    return target


def check(server: Path, backends: Path, library_folders: list[Path]) -> None:
    """Start both programs once, so that a library they miss is found now and not at the start.

    Raises:
        SetupProblem: one of them cannot be loaded.
    """
    path = os.pathsep.join(str(folder) for folder in library_folders)
    environment = {**os.environ, "LD_LIBRARY_PATH": path}
    for command in ([str(server), "--help"], [str(backends / "python" / STUB)]):
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=60
        )
        if done.returncode == 127 or "error while loading" in done.stderr:
            raise SetupProblem(
                STEP,
                done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "cannot be loaded",
                f"this needs x86-64 Linux with glibc 2.35 (here: {platform.libc_ver()[1]}), such "
                "as Debian 12 or Ubuntu 22.04; else run it in the Dockerfile's image",
            )
