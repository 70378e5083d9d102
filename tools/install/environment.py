"""The virtual environment: made, judged, filled."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tools.install import pins
from tools.install.interpreters import SUPPORTED, Interpreter
from tools.install.steps import CommandFailed, Steps

NETWORK_CURE = (
    "check the network and pip's index settings (pip config list), then run make setup again"
)
GPU_DEVICE = Path("/dev/nvidiactl")
#: pip's words for "no index offers this version".
_NOT_OFFERED = r"No matching distribution found|Could not find a version|ResolutionImpossible"
#: It ends with the same words when no index could be reached.
_UNREACHABLE = r"connection broken by|Max retries exceeded"


def read_config(venv: Path) -> dict[str, str]:
    """``pyvenv.cfg`` as a mapping; empty when there is none."""
    try:
        lines = (venv / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}


def minor_of(venv: Path) -> str:
    """The Python of a venv, such as ``3.11``; empty when there is no venv."""
    return ".".join(read_config(venv).get("version", "").split(".")[:2])


def marker_of(venv: Path) -> Path:
    """The file that lies in a venv while it is written to: found later, it means half done."""
    return venv / ".setup-unfinished"


def is_usable(venv: Path, *, system_site: bool) -> bool:
    """Whether an existing venv can be filled: whole, of a supported Python, of the right kind."""
    config = read_config(venv)
    if marker_of(venv).exists() or minor_of(venv) not in {f"{a}.{b}" for a, b in SUPPORTED}:
        return False
    if (config.get("include-system-site-packages") == "true") != system_site:
        return False
    # It may have been copied from elsewhere, or its Python uninstalled.
    command = [str(venv / "bin" / "python"), "-I", "-c", "import pip"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False


def create(steps: Steps, venv: Path, base: Interpreter) -> None:
    """Make the venv anew, whatever lay there.

    Raises:
        SetupProblem: it cannot be made.
    """
    if venv.is_symlink() or venv.is_file():
        venv.unlink()
    elif venv.exists():
        shutil.rmtree(venv)
    venv.mkdir()
    marker_of(venv).touch()
    command = [base.executable, "-m", "venv", str(venv)]
    if base.has_vllm:
        command.insert(3, "--system-site-packages")
    try:
        steps.run(command)
    except CommandFailed as error:
        cure = f"apt-get install python{base.minor}-venv (Debian, Ubuntu) or free disk space"
        raise steps.failed("making .venv", error, cure) from error
    marker_of(venv).unlink()


def pip(steps: Steps, venv: Path, *arguments: str) -> None:
    """Run pip in the venv.

    The marker lies in the venv meanwhile. It stays when pip is killed or fails half-way, which
    makes the next set-up start from an empty venv; a pip that failed before it wrote anything
    takes it away again: a lost network must not cost what is already installed.

    Raises:
        CommandFailed: pip ended with a code other than 0.
    """
    marker = marker_of(venv)
    marker.touch()
    try:
        python = str(venv / "bin" / "python")
        steps.run([python, "-m", "pip", "--disable-pip-version-check", "install", *arguments])
    except CommandFailed as error:
        if not error.says("Installing collected packages"):
            marker.unlink()
        raise
    marker.unlink()


def install_torch(steps: Steps, venv: Path, version: str, lock: Path) -> None:
    """The CPU build where an index offers it, else the ordinary one with its CUDA libraries.

    Raises:
        SetupProblem: neither can be installed.
    """
    what = "installing torch"
    try:
        pip(steps, venv, "--no-deps", f"torch=={version}+cpu")
        return
    except CommandFailed as error:
        if not error.says(_NOT_OFFERED) or error.says(_UNREACHABLE):
            raise steps.failed(what, error, NETWORK_CURE) from error
    size = "the engine here is vLLM's CPU build all the same: for the GPU use the Dockerfile"
    if not GPU_DEVICE.exists():
        size = "its CUDA libraries are about 3 GB to download and 6 GB on disk, unused here"
    steps.note(
        f"  notice: no configured index offers torch {version}+cpu for this Python, so the "
        f"ordinary build is installed;\n  {size}.\n  To avoid it: interrupt (Ctrl-C), put "
        "PyTorch's CPU wheel index (its install page names it)\n  in PIP_EXTRA_INDEX_URL and run "
        "make setup again."
    )
    # The lock is installed without dependencies, so torch must bring its own. Where the lock pins
    # one of them too, that version is right, except triton, which torch pins itself.
    constraints = venv / "torch-constraints.txt"
    held = pins.without(pins.pins(lock.read_text()), {"torch", "triton"})
    constraints.write_text("\n".join(held) + "\n")
    try:
        pip(steps, venv, "--constraint", str(constraints), f"torch=={version}")
    except CommandFailed as error:
        raise steps.failed(what, error, NETWORK_CURE) from error


def installed(venv: Path) -> dict[str, str]:
    """Packages the venv's Python sees, by canonical name, with their versions."""
    done = subprocess.run(  # noqa: S603
        [str(venv / "bin" / "python"), "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.findall(r"^([^=\s]+)==(\S+)$", done.stdout, re.MULTILINE)
    return {pins.canonical(name): version for name, version in found}


def install_lock(steps: Steps, venv: Path, lock: Path, *, image: bool) -> None:
    """Everything else the lock pins; in an image with vLLM only what the image lacks.

    Raises:
        SetupProblem: pip failed.
    """
    have = installed(venv)
    wanted: list[str] = pins.without(pins.pins(lock.read_text()), {"torch"})
    if image:
        wanted = pins.without(wanted, pins.IMAGE_BRINGS | set(have))
    elif not have.get("torch", "").endswith("+cpu"):
        wanted = pins.without(wanted, {"triton"})
    if not wanted:
        return
    chosen = venv / "setup-requirements.txt"
    chosen.write_text("\n".join(wanted) + "\n")
    try:
        pip(steps, venv, "--no-deps", "--requirement", str(chosen))
    except CommandFailed as error:
        raise steps.failed("installing packages", error, NETWORK_CURE) from error
