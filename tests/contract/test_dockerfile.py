"""The Dockerfile, as far as it can be judged without building it."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import string
import subprocess
from inspect import signature
from pathlib import Path

import pytest

from tools.health import health
from tools.serving.arguments import Ports

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3"
DIGEST = "@sha256:" + "0" * 64
HOME = "/opt/lora-serving"
ENTRYPOINT = ROOT / "deploy" / "image" / "entrypoint.sh"
KNOWN = {
    *("ARG", "FROM", "USER", "WORKDIR", "COPY", "RUN", "ENV", "VOLUME", "EXPOSE"),
    *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD", "LABEL"),
}
LABELS = {
    *("title", "description", "version", "revision", "created", "licenses"),
    *("base.name", "base.digest"),
}


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments, comments gone and continued lines joined."""
    lines = [
        line
        for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines()
        if not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    found = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in found]


def every(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def env() -> dict[str, str]:
    return dict(
        pair.split("=", 1) for rest in every("ENV") for pair in shlex.split(rest) if "=" in pair
    )


def arguments() -> dict[str, str]:
    """Build arguments with their defaults."""
    return dict(rest.split("=", 1) for rest in every("ARG") if "=" in rest)


def filled(text: str, **given: str) -> str:
    """``text`` with its build arguments in place."""
    return string.Template(text).substitute(arguments() | given)


def copies() -> list[tuple[list[str], str]]:
    """Sources and target of each COPY from the checkout."""
    words = [rest.split() for rest in every("COPY") if not rest.startswith("--from=")]
    return [(each[:-1], each[-1]) for each in words]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps ``path`` from the builder; its last matching line decides."""
    result = False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keep = pattern.startswith("!")
        pattern = pattern.lstrip("!").rstrip("/")
        parts = path.split("/")
        if pattern.startswith("**/"):
            hit = any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
        else:
            depth = pattern.count("/") + 1
            hit = fnmatch.fnmatchcase("/".join(parts[:depth]), pattern)
        if hit:
            result = not keep
    return result


def tracked(path: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "--", path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_instructions_are_docker_s() -> None:
    names = [name for name, _ in instructions()]
    assert set(names) <= KNOWN  # no ADD, and so none of a URL
    assert names[:4] == ["ARG", "ARG", "ARG", "FROM"]
    for once in ("HEALTHCHECK", "ENTRYPOINT"):
        assert names.count(once) == 1
    assert all(rest for _, rest in instructions())


def test_both_stages_start_from_the_image_agreed_on_and_can_be_pinned() -> None:
    packages, last = every("FROM")
    assert packages == f"{last} AS packages"
    assert filled(last) == IMAGE
    assert filled(last, BASE_DIGEST=DIGEST) == IMAGE + DIGEST


def test_the_labels_say_what_was_built_from_what() -> None:
    given = {"VERSION": "1.2", "REVISION": "abc", "CREATED": "2026-01-02T03:04:05Z"}
    words = shlex.split(filled(" ".join(every("LABEL")), BASE_DIGEST=DIGEST, **given))
    labels = dict(word.split("=", 1) for word in words)
    spec = "org.opencontainers.image."
    assert set(labels) == {spec + name for name in LABELS}
    assert labels[f"{spec}base.name"] == IMAGE
    assert labels[f"{spec}base.digest"] == DIGEST
    shown = ("version", "revision", "created")
    assert [labels[spec + name] for name in shown] == list(given.values())


def test_what_the_stages_hand_on() -> None:
    (copied,) = [rest for rest in every("COPY") if rest.startswith("--from=")]
    assert copied == "--from=packages /opt/packages/ /opt/packages/"
    (script,) = [run for run in every("RUN") if "-m pip" in run]
    made = re.findall(r"-m pip --python (\S+) install", script)
    assert made == ["/opt/packages/bin/python3"]
    assert env()["PATH"].split(":")[0] == "/opt/packages/bin"


def test_what_is_copied_is_there_and_sent() -> None:
    for sources, target in copies():
        assert not target.startswith("/")
        for source in sources:
            assert "://" not in source
            path = source.rstrip("/")
            assert (ROOT / path).is_dir() == source.endswith("/")
            files = tracked(path)
            assert files, f"{path}: nothing of it is in git"
            assert [file for file in files if ignored(file)] == []
            if source.endswith("/") or len(sources) == 1:
                # A folder's contents are copied, so the target must name the folder again.
                assert target in (source, "./")


def test_what_serves_is_copied() -> None:
    copied = {source.rstrip("/") for sources, _ in copies() for source in sources}
    assert {"model_repository", "python_backend", "ensemble", "tools", "LICENSE"} <= copied


@pytest.mark.parametrize(
    "path",
    [
        *(".git/config", ".venv/bin/python", ".demo/keys.json", ".cache/x", "tests/unit/x.py"),
        *("tools/__pycache__/x.pyc", "python_backend/engine/__pycache__/x.pyc", "keys.json"),
    ],
)
def test_what_is_not_sent(path: str) -> None:
    assert ignored(path)


def test_the_code_is_found() -> None:
    assert every("WORKDIR")[-1] == HOME
    assert env()["PYTHONPATH"] == HOME


def test_nobody_is_root_at_the_end() -> None:
    user = every("USER")[-1]
    uid, _, gid = user.partition(":")
    assert int(uid) > 0
    assert gid == "0"  # what OpenShift's random users are in
    made = [run for run in every("RUN") if "useradd" in run]
    assert len(made) == 1 and f"--uid {uid} --gid {gid}" in made[0]
    order = instructions()
    last_run = max(i for i, (name, _) in enumerate(order) if name == "RUN")
    assert order.index(("USER", user)) > last_run


def test_the_state_is_a_volume_of_that_user() -> None:
    (volume,) = every("VOLUME")
    assert env()["HOME"] == volume
    (state,) = re.findall(r"LORA_STATE_DIR:-([^}]+)\}", ENTRYPOINT.read_text("utf-8"))
    assert state.startswith(f"{volume}/")
    assert state in every("HEALTHCHECK")[0]


def test_ports() -> None:
    from tools.serve import serve

    defaults = [serve.__defaults__[i] for i in (1, 2, 3)]
    assert every("EXPOSE") == [" ".join(map(str, defaults))]
    assert list(Ports(*defaults).by_flag()) == ["--http-port", "--grpc-port", "--metrics-port"]


def test_the_entry_point_is_the_script_that_is_copied() -> None:
    command = json.loads(every("ENTRYPOINT")[0])
    assert command == [
        "/opt/nvidia/nvidia_entrypoint.sh",
        f"{HOME}/{ENTRYPOINT.relative_to(ROOT)}",
    ]
    assert os.access(ENTRYPOINT, os.X_OK)


def test_health_is_asked_as_the_tool_understands_it() -> None:
    (check,) = every("HEALTHCHECK")
    flags, command = check.split("CMD", 1)
    assert {flag.split("=")[0] for flag in flags.split()} == {
        *("--start-period", "--interval", "--timeout", "--retries")
    }
    words = json.loads(command)
    assert words[:4] == ["python3", "-m", "tools", "health"]
    known = {f"--{name.replace('_', '-')}" for name in signature(health).parameters}
    assert {word for word in words if word.startswith("--")} <= known
