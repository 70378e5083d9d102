"""Set-up: ``.venv`` with the pinned packages, and a tritonserver under ``.cache/triton``.

Run as ``python3 tools/setup.py`` (``make setup``), before anything is installed: standard library
only. A second run finds its stamp and ends at once; a run that was killed is made good by the next.
"""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Run as a script, Python puts this folder first on the path; the checkout belongs there.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tools import layout, tritonserver
from tools.install import backend, environment, interpreters, pins
from tools.install.problem import SetupProblem
from tools.install.steps import Steps

STAMP = layout.VENV / ".setup-stamp"
LOG = layout.SETUP_CACHE / "setup.log"


def expected_stamp() -> str:
    """What a finished set-up of this checkout on this machine is stamped with."""
    code = layout.ROOT / "tools"
    sources = [layout.LOCK, code / "setup.py", *(code / "install").glob("*.py")]
    server = tritonserver.installed()
    minor = environment.minor_of(layout.VENV)
    return pins.digest(sources, minor, str(server or "wheel"), str(layout.ROOT))


def is_done() -> bool:
    """Whether nothing is left to do. Takes milliseconds: no process is started."""
    if not layout.VENV_PYTHON.exists() or not pins.is_stamped(STAMP, expected_stamp()):
        return False
    return tritonserver.installed() is not None or backend.is_assembled(layout.BACKENDS)


def plan() -> list[tuple[str, Callable[[Steps], None]]]:
    """The steps this machine needs, in order.

    Raises:
        SetupProblem: no usable Python.
    """
    base = interpreters.choose(interpreters.candidates())
    venv = layout.VENV
    steps: list[tuple[str, Callable[[Steps], None]]] = []
    if not environment.is_usable(venv, system_site=base.has_vllm):
        label = f"making .venv with Python {base.minor} ({base.executable})"
        steps.append((label, lambda show: environment.create(show, venv, base)))
    if not base.has_vllm:
        version = pins.torch_version(pins.pins(layout.LOCK.read_text()))
        label = f"installing torch {version} (CPU build where offered, 200 MB)"
        steps.append(
            (label, lambda show: environment.install_torch(show, venv, version, layout.LOCK))
        )
    steps.append(
        (
            "installing packages (pinned)",
            lambda show: environment.install_lock(show, venv, layout.LOCK, image=base.has_vllm),
        )
    )
    if tritonserver.installed() is None:
        steps.append(("assembling tritonserver", lambda show: assemble(show)))
    return steps


def assemble(show: Steps) -> None:
    """Assemble the wheel's server and try it.

    Raises:
        SetupProblem: a part is missing or cannot be loaded.
    """
    # The venv's own Python decides the stub, not the one running this.
    inside = interpreters.probe(str(layout.VENV_PYTHON))
    if inside is None:
        raise SetupProblem(backend.STEP, "the Python of .venv does not run", "rm -r .venv")
    packages = layout.VENV / "lib" / f"python{inside.minor}" / "site-packages"
    backend.assemble(packages, inside.minor, layout.BACKENDS)
    libpython = backend.provide_libpython(show, inside, layout.LIBPYTHON)
    folders = tritonserver.library_folders(packages, [libpython])
    backend.check(tritonserver.bundled(packages), layout.BACKENDS, folders)


def set_up() -> None:
    """Do what is left to do.

    Raises:
        SetupProblem: a step failed.
    """
    began = time.monotonic()
    STAMP.unlink(missing_ok=True)
    todo = plan()
    show = Steps(len(todo), LOG)
    for label, action in todo:
        with show.step(label):
            action(show)
    pins.write_stamp(STAMP, expected_stamp())
    print(f"set-up: done in {time.monotonic() - began:.0f} s")


def main() -> int:
    """Exit code 0 when set up, 1 with the step, the reason and the cure when not."""
    if is_done():
        print("set-up: up to date")
        return 0
    layout.SETUP_CACHE.mkdir(parents=True, exist_ok=True)
    with (layout.SETUP_CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("set-up: another one is running, waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not is_done():
                set_up()
        except SetupProblem as problem:
            print(f"\n{problem}", file=sys.stderr)
            return 1
        except OSError as error:
            cure = "free disk space or make the checkout writable, then run make setup again"
            print(f"\n{SetupProblem('files', str(error), cure)}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nset-up: interrupted; run make setup again", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
