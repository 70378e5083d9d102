"""Faults against real processes and files: each does what it says, and undoes itself."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from loadtests.faults import filled, room
from loadtests.faults.house import ENGINE, House, NotHere
from loadtests.faults.injector import Injector
from loadtests.faults.kill import kill
from loadtests.faults.kinds import KINDS, NEED_ROOM
from loadtests.faults.schedule import Planned
from python_backend.adapters.signing_keys import load
from tools.serving.process import part, session_members

SETTINGS = {
    "adapters": {"root": "adapters"},
    "policy": "policy.yaml",
    "signing": {"keys_file": "signing-keys.yaml"},
}
#: Children with the command lines of others, whose names are given backwards: not its own.
SESSION = """
import subprocess, sys, time
sleep = "import time; time.sleep(60)"
for name in sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", sleep, name[::-1]])
print("started", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def session(house: House, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, as tritonserver is; nothing of it stays."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "started\n"
        (house.state / "run").mkdir(parents=True, exist_ok=True)
        (house.state / "run" / "server.pid").write_text(f"{process.pid}\n")
        yield process
    finally:
        for pid in session_members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()


@pytest.fixture
def house(tmp_path: Path) -> House:
    config = tmp_path / "serving.yaml"
    config.write_text(yaml.safe_dump(SETTINGS))
    (tmp_path / "adapters" / "fin_risk_v1").mkdir(parents=True)
    (tmp_path / "policy.yaml").write_text("version: 1\ndepartments: {}\nprincipals: []\n")
    keys = tmp_path / "signing-keys.yaml"
    keys.write_text(
        yaml.safe_dump({"keys": [{"id": "fin", "secret": "0" * 64, "adapters": ["fin_*"]}]})
    )
    keys.chmod(0o600)
    return House(config, tmp_path / "state")


def test_a_kill_ends_its_process_alone(house: House) -> None:
    names = [name[::-1] for name in ("/models/lora_gate/1/model.py", f"VLLM::{ENGINE}")]
    with session(house, sys.executable, "-c", SESSION, *names) as server:
        gate, engine = (part(server.pid, name) for name in ("lora_gate", ENGINE))
        assert gate and engine
        with kill("lora_gate")(house) as target:
            assert target == f"lora_gate (pid {gate})"
        until = time.monotonic() + 10
        while gate in session_members(server.pid) and time.monotonic() < until:
            time.sleep(0.01)
        assert set(session_members(server.pid)) == {server.pid, engine}
        with pytest.raises(NotHere, match="no process of lora_gate runs"), kill("lora_gate")(house):
            pass
        with kill("tritonserver")(house):
            assert server.wait(10) == -9


def test_without_a_server_there_is_nothing_to_kill(house: House) -> None:
    with pytest.raises(NotHere, match=r"server\.pid names no server"), kill(ENGINE)(house):
        pass


def test_a_broken_policy_is_put_right_whatever_happens(house: House, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    before = path.read_bytes()
    path.chmod(0o640)
    with pytest.raises(RuntimeError), KINDS["policy_broken"](house):
        with pytest.raises(yaml.YAMLError):
            yaml.safe_load(path.read_text())
        raise RuntimeError
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_root_comes_back(house: House, tmp_path: Path) -> None:
    with KINDS["root_gone"](house) as target:
        assert target == "adapters"
        assert not (tmp_path / "adapters").exists()
    assert (tmp_path / "adapters" / "fin_risk_v1").is_dir()
    shutil.rmtree(tmp_path / "adapters")
    with pytest.raises(NotHere, match="adapters: No such file"), KINDS["root_gone"](house):
        pass


def test_rotated_keys_have_ended_and_have_successors(house: House, tmp_path: Path) -> None:
    path = tmp_path / "signing-keys.yaml"
    before = path.read_bytes()
    with KINDS["key_rotated"](house):
        old, new = load(path).keys
        assert (old.id, old.secret) == ("fin", "0" * 64)
        assert old.not_after is not None
        assert old.not_after <= datetime.datetime.now(datetime.UTC)
        assert new.adapters == ("fin_*",) and new.secret != old.secret
    assert path.read_bytes() == before


def test_the_machines_own_file_systems_are_never_filled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(filled, "LARGEST", 1)
    with pytest.raises(NotHere, match="which others use too"), filled.filled(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


WRITES = """
import pathlib, sys
print("started", flush=True)
for number, line in enumerate(sys.stdin):
    try:
        pathlib.Path(sys.argv[1], f"file{number}").write_bytes(b"x" * 8192)
        print("written", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.mark.parametrize("name", NEED_ROOM)
def test_a_room_is_filled_and_nothing_else(house: House, name: str) -> None:
    """A process in a room cannot write while the fault lasts, and can before and after."""
    if (problem := room.unavailable()) is not None:
        pytest.skip(problem)
    audit = house.settings.audit_dir
    places = {"disk_full": audit, "shm_full": Path("/dev/shm")}
    command = [sys.executable, "-c", WRITES, str(places[name])]
    inside = room.inside(command, audit, shm_bytes=2**20, audit_bytes=2**20)
    free = os.statvfs("/dev/shm").f_bavail
    with subprocess.Popen(
        inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def write() -> str:
            assert process.stdin is not None and process.stdout is not None
            print(file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        assert process.stdout.readline() == "started\n"
        (house.state / "run").mkdir(parents=True, exist_ok=True)
        (house.state / "run" / "server.pid").write_text(str(process.pid))
        assert write() == "written"
        with KINDS[name](house):
            assert write() == "No space left on device"
            assert os.statvfs("/dev/shm").f_bavail > free // 2, "the machine's own is as it was"
        assert write() == "written"
        process.stdin.close()
    assert process.returncode == 0
    assert list(audit.iterdir()) == []


def since(began_s: float) -> Callable[[], float]:
    return lambda: time.monotonic() - began_s


def faults(*kinds: str, hold_s: float = 60.0) -> list[Planned]:
    return [Planned(kind, 0.01, hold_s) for kind in kinds]


def test_the_end_of_the_load_undoes_a_fault_at_once(house: House, tmp_path: Path) -> None:
    said: list[str] = []
    root = tmp_path / "adapters"
    began = time.monotonic()
    with Injector(house, faults("root_gone"), since(began), said.append) as injector:
        until = began + 10
        while root.exists() and time.monotonic() < until:
            time.sleep(0.005)
        assert not root.exists()
    assert root.is_dir()
    (one,) = injector.injected
    assert (one.kind, one.target, injector.problems) == ("root_gone", "adapters", [])
    assert said[0].endswith("root_gone, adapters")


def test_what_cannot_be_injected_is_said_and_the_next_one_comes(house: House) -> None:
    said: list[str] = []
    planned = faults("kill_engine", "policy_broken", hold_s=0.0)
    with Injector(house, planned, since(time.monotonic()), said.append) as injector:
        until = time.monotonic() + 10
        while not injector.injected and time.monotonic() < until:
            time.sleep(0.005)
    assert [one.kind for one in injector.injected] == ["policy_broken"]
    assert injector.problems == [said[0]]
    assert said[0].startswith("kill_engine: ") and "names no server" in said[0]
