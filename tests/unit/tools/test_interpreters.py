from __future__ import annotations

import sys

import pytest

from tools.install.interpreters import Interpreter, choose, probe
from tools.install.problem import SetupProblem


def python(name: str, version: tuple[int, int, int], *, venv: bool = True) -> Interpreter:
    return Interpreter(name, version, venv, "/usr/lib", False)


PYTHONS = {
    "old": python("old", (3, 10, 12)),
    "eleven": python("eleven", (3, 11, 2)),
    "twelve": python("twelve", (3, 12, 3)),
    "bare": python("bare", (3, 11, 2), venv=False),
    "broken": None,
}


def chosen(*names: str) -> str:
    return choose(names, PYTHONS.__getitem__).executable


def test_the_running_python_wins_when_it_is_supported() -> None:
    assert chosen("eleven", "twelve") == "eleven"


def test_another_is_taken_when_the_running_one_is_too_old() -> None:
    assert chosen("old", "broken", "twelve", "eleven") == "twelve"


def test_one_that_can_make_a_venv_is_preferred() -> None:
    assert chosen("bare", "twelve") == "twelve"


def test_a_missing_venv_module_names_the_package() -> None:
    with pytest.raises(SetupProblem, match="venv") as caught:
        chosen("bare", "old")
    assert "apt-get install python3.11-venv" in caught.value.cure


def test_no_supported_python_says_what_was_found() -> None:
    with pytest.raises(SetupProblem) as caught:
        chosen("old", "broken")
    assert "found 3.10" in caught.value.reason
    assert "PYTHON=" in caught.value.cure


def test_probe_tells_the_base_python_of_a_venv() -> None:
    found = probe(sys.executable)
    assert found is not None
    assert found.version == sys.version_info[:3]
    assert found.has_vllm is False, "what is installed in our venv does not come with the image"


def test_probe_of_what_does_not_run() -> None:
    assert probe("/bin/false") is None
    assert probe("/does/not/exist") is None
