"""Programs that tests run and PyPI does not carry, from Debian's packages, without root.

``program("nginx", "nginx")`` is the one on PATH, or one from the named package: apt resolves it
and what of its libraries this machine lacks with a state folder of its own below ``.cache/debian``,
``dpkg -x`` unpacks them there, and nothing on the machine is changed. On a machine without apt, or
where apt cannot reach its mirror, the test is skipped and says which program it missed.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools.layout import CACHE

FOLDER = CACHE / "debian"
#: Where packages put programs; the first two are seldom on the PATH of a user who is not root.
PROGRAMS = ("usr/sbin", "sbin", "usr/bin", "bin", "usr/games")
#: Where packages keep a program whose name in usr/bin is a script that looks for it in /usr.
BEHIND_SCRIPTS = ("usr/lib/chromium",)
#: A C library beside another's loader starts nothing: the machine's own is used.
NEVER = ("libc6", "libc-bin")


class UnavailableError(Exception):
    """The program cannot be had on this machine; the text says why."""


def program(package: str, name: str) -> Path:
    """The program's path, to be run as it is; skips the test where it cannot be had."""
    try:
        return find(package, name)
    except UnavailableError as error:
        pytest.skip(f"no {name} (Debian package {package}): {error}")


def find(package: str, name: str, folder: Path = FOLDER) -> Path:
    """The program on this machine, or the one unpacked below ``folder``, fetched if need be.

    Raises:
        UnavailableError: No apt or dpkg here, apt fails, or the package has no such program.
    """
    places = [os.environ.get("PATH", ""), *(f"/{place}" for place in PROGRAMS)]
    if found := shutil.which(name, path=os.pathsep.join(places)):
        return Path(found)
    return fetched(package, name, folder)


def fetched(package: str, name: str, folder: Path = FOLDER) -> Path:
    """A script that starts the package's program with the libraries that came with it.

    Raises:
        UnavailableError: As of ``find``.
    """
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"no {tool} on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    script = folder / "bin" / name
    with _alone(folder):
        if not script.exists():
            root = folder / "packages" / package
            if not root.exists():
                _unpack(package, root, folder)
            _write(script, _start(root, _inside(root, package, name)))
    return script


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Test runs that share a cache fetch one after the other."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(package: str, root: Path, folder: Path) -> None:
    """The package and its missing libraries below ``root``: whole, or not at all."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        archives = Path(work, "archives")
        (archives / "partial").mkdir(parents=True)
        install = ["install", "--yes", "--no-install-recommends", "--download-only", package]
        apt = _apt(folder, archives)
        # Lists of an earlier run may name versions that the mirror has replaced since.
        if _run([*apt, *install]) is not None:
            for command in (["update"], install):
                if problem := _run([*apt, *command]):
                    raise UnavailableError(problem)
        whole = Path(work, "root")
        for archive in sorted(archives.glob("*.deb")):
            if archive.name.split("_")[0] in NEVER:
                continue
            if problem := _run(["dpkg", "-x", str(archive), str(whole)]):
                raise UnavailableError(problem)
        if not whole.exists():
            raise UnavailableError("apt takes it for installed, but the program is not there")
        root.parent.mkdir(exist_ok=True)
        whole.rename(root)


def _apt(folder: Path, archives: Path) -> list[str]:
    """apt-get with the machine's sources and its list of what is installed, writing elsewhere."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State": folder,
        "Dir::State::lists": lists,
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": folder,
        "Dir::Cache::archives": archives,
        "Dir::Log": folder,
        "Debug::NoLocking": "1",
        # Started as root, apt would hand the download to a user who may not write here.
        "APT::Sandbox::User": "",
        "Acquire::Retries": "2",
    }
    return ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]


def _run(command: list[str]) -> str | None:
    """What went wrong, in a line; None when nothing did."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} took too long"
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg"))]
    return said[0] if said else f"{command[0]} ended with {done.returncode}"


def _inside(root: Path, package: str, name: str) -> Path:
    for place in (*BEHIND_SCRIPTS, *PROGRAMS):
        if (found := root / place / name).is_file():
            return found
    raise UnavailableError(f"the package {package} has no program of that name")


def _start(root: Path, found: Path) -> str:
    """A script around the program; ``exec`` keeps the process's id, so signals reach it."""
    libraries = ":".join(str(place) for place in _library_folders(root.rglob("*.so*")))
    return (
        "#!/bin/sh\n"
        f"LD_LIBRARY_PATH={shlex.quote(libraries)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n"
        "export LD_LIBRARY_PATH\n"
        f'exec {shlex.quote(str(found))} "$@"\n'
    )


def _library_folders(libraries: Iterable[Path]) -> list[Path]:
    return sorted({library.parent for library in libraries if library.is_file()})


def _write(script: Path, text: str) -> None:
    script.parent.mkdir(exist_ok=True)
    half = script.with_suffix(".half")
    half.write_text(text)
    half.chmod(0o755)
    half.rename(script)
