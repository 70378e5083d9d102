"""Which Python the venv is made from, and what it lacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tools.install.problem import SetupProblem

#: Versions the pins were chosen for, best first.
SUPPORTED: tuple[tuple[int, int], ...] = ((3, 12), (3, 11))
STEP = "choosing a Python"

# Asked of each candidate, in its own process: a version manager's shim may lie on PATH and fail.
# vLLM counts only together with its metadata: it is what the pins would otherwise install.
PROBE = """
import importlib.util as u, json, os, sys, sysconfig as s
lib = s.get_config_var("INSTSONAME") or ""
dirs = [s.get_config_var("LIBDIR") or "", "/usr/lib/" + (s.get_config_var("MULTIARCH") or "")]
found = [d for d in dirs if lib and os.path.exists(os.path.join(d, lib))]
print(json.dumps({
    "executable": sys.executable, "venv_of": sys._base_executable
    if sys.prefix != sys.base_prefix else None, "version": list(sys.version_info[:3]),
    "venv": bool(u.find_spec("venv")) and bool(u.find_spec("ensurepip")),
    "libpython": found[0] if found else None, "has_vllm": bool(u.find_spec("vllm")),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that runs, and what set-up must know of it."""

    executable: str
    version: tuple[int, int, int]
    #: ``python -m venv`` works (Debian packages that apart).
    venv: bool
    #: Folder of its shared libpython, which Triton's stub loads; None where there is none.
    libpython: str | None
    #: vLLM comes with it, as in a vLLM image: then nothing of the sort is installed.
    has_vllm: bool

    @property
    def minor(self) -> str:
        """Such as ``3.11``."""
        return f"{self.version[0]}.{self.version[1]}"


def probe(executable: str) -> Interpreter | None:
    """What ``executable`` says of itself, or None when it does not run.

    Of a venv, the Python it was made from answers: what lies in the venv is not the system's.
    """
    try:
        # -I: neither PYTHONPATH nor the current folder decides what it has.
        done = subprocess.run(  # noqa: S603
            [executable, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=True
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if said["venv_of"] and said["venv_of"] != executable:
        return probe(said["venv_of"])
    major, minor, micro = said["version"]
    return Interpreter(
        said["executable"], (major, minor, micro), said["venv"], said["libpython"], said["has_vllm"]
    )


def candidates() -> Iterable[str]:
    """The running Python first, so that ``python3.12 tools/setup.py`` chooses; then PATH."""
    yield sys.executable
    for major, minor in SUPPORTED:
        path = shutil.which(f"python{major}.{minor}")
        if path:
            yield path


def choose(paths: Iterable[str], ask: Callable[[str], Interpreter | None] = probe) -> Interpreter:
    """The first supported Python that can make a venv.

    Raises:
        SetupProblem: none is supported, or none of those can make a venv.
    """
    seen = []
    for path in paths:
        found = ask(path)
        if found is None:
            continue
        seen.append(found)
        if found.version[:2] in SUPPORTED and found.venv:
            return found
    usable = [found for found in seen if found.version[:2] in SUPPORTED]
    if usable:
        package = f"python{usable[0].minor}-venv"
        raise SetupProblem(
            STEP,
            f"{usable[0].executable} lacks the modules venv and ensurepip",
            f"apt-get install {package} (Debian, Ubuntu), then run make setup again",
        )
    versions = ", ".join(sorted({found.minor for found in seen})) or "none that runs"
    raise SetupProblem(
        STEP,
        f"Python 3.11 or 3.12 is needed; found {versions}",
        "apt-get install python3.11 python3.11-venv libpython3.11 (or the 3.12 ones), "
        "or name one: make setup PYTHON=/path/to/python3.12",
    )
