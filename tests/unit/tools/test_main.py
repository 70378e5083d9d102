from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tools import layout
from tools.__main__ import COMMANDS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools", *arguments], cwd=layout.ROOT, capture_output=True, text=True
    )


def test_help_lists_every_command() -> None:
    shown = run("--help").stdout
    assert all(name in shown for name in COMMANDS)


def test_help_imports_no_command() -> None:
    code = "import sys, tools.__main__; print(sorted(m for m in sys.modules if m in sys.argv[1:]))"
    modules = [module for module, _, _ in COMMANDS.values()]
    done = subprocess.run(
        [sys.executable, "-c", code, "torch", *modules],
        cwd=layout.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("module", sorted({module for module, _, _ in COMMANDS.values()}))
def test_every_command_has_its_module(module: str) -> None:
    assert find_spec(module) is not None


def test_a_command_gets_its_own_arguments() -> None:
    assert "--grpc-port" in run("serve", "--help").stdout
    done = run("serve", "--config", "/does/not/exist.yaml")
    assert done.returncode == 1
    assert "--config /does/not/exist.yaml: no such file" in done.stderr
    assert "python -m tools demo" in done.stderr
    assert run("serve", "--http-port", "0").returncode == 2


def test_what_a_command_lacks_is_said_in_a_line() -> None:
    code = (
        "import sys; sys.modules['loadtests'] = None; sys.argv = ['tools', 'report', '--help']; "
        "from tools.__main__ import app; app()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=layout.ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "report needs loadtests" in done.stderr and "Traceback" not in done.stderr
