"""Who lives, who has died, and who has only ended."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from python_backend import presence, runtime
from python_backend.presence import SILENCE_S, Presence, Record, Watch, judge, lost

RECORD = Record("vllm_lora", "boot", 7, "11", heartbeat=True)


def test_judgement() -> None:
    assert judge(RECORD, running=True, silent_s=0) is None
    assert judge(RECORD, running=True, silent_s=SILENCE_S) is None
    hung = judge(RECORD, running=True, silent_s=SILENCE_S + 1)
    assert hung is not None and "no sign of life for 61 s" in hung.reason
    mute = dataclasses.replace(RECORD, heartbeat=False)
    assert judge(mute, running=True, silent_s=1e9) is None
    dead = judge(mute, running=False, silent_s=0)
    assert dead == presence.Lost("vllm_lora", "the process of vllm_lora (pid 7) has died")
    failed = judge(
        dataclasses.replace(RECORD, failed="the engine has died"), running=True, silent_s=0
    )
    assert failed is not None and failed.reason == "vllm_lora: the engine has died"


def boot() -> str:
    return runtime.boot_id()


def test_a_living_process_is_not_lost_and_one_that_ends_in_order_neither(tmp_path: Path) -> None:
    record = Presence(tmp_path, "lora_gate")
    assert lost(tmp_path, boot()) == []
    record.withdraw()
    assert list((tmp_path / presence.FOLDER).iterdir()) == []
    assert lost(tmp_path, boot()) == []


def test_a_failure_is_seen_and_can_be_said_by_others_only_for_the_server(tmp_path: Path) -> None:
    record = Presence(tmp_path, "vllm_lora", heartbeat=True)
    watch = Watch(tmp_path, ("vllm_lora",), recheck_s=0)
    other = Watch(tmp_path, ("lora_gate",), recheck_s=0)
    record.beat()
    assert watch.lost() == ""
    record.fail("the engine has died")
    assert watch.lost() == "vllm_lora: the engine has died"
    assert other.lost() == ""
    record.withdraw()
    assert watch.lost() == ""
    presence.give_up(tmp_path, os.getppid(), "a test")
    assert watch.lost() == other.lost() == "server: a test"
    presence.clear(tmp_path)
    assert watch.lost() == ""


def test_a_killed_process_is_lost_and_one_of_another_boot_is_not(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = runtime.process_start(child.pid) or ""
    folder = tmp_path / presence.FOLDER
    folder.mkdir()
    for model, boot_id in (("lora_gate", boot()), ("lora_infer", "another")):
        record = Record(model, boot_id, child.pid, start)
        (folder / f"{model}.json").write_text(json.dumps(dataclasses.asdict(record)))
    (folder / "half.json").write_text('{"model": ')
    assert lost(tmp_path, boot()) == []
    child.kill()
    # Not reaped yet: a zombie counts as dead, since that is what Triton leaves of a killed stub.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [loss.model for loss in lost(tmp_path, boot())] == ["lora_gate"]
    child.communicate()
    assert [loss.model for loss in lost(tmp_path, boot())] == ["lora_gate"]


def test_a_watch_looks_once_per_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(presence, "lost", lambda *_: calls.append(1) or [])
    watch = Watch(tmp_path, (), recheck_s=60)
    assert [watch.lost(), watch.lost()] == ["", ""]
    assert len(calls) == 1


def test_a_process_ends_with_its_server() -> None:
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    script = (
        "import sys, time; from python_backend.presence import end_with;"
        "end_with(int(sys.argv[1]), 0.1); print('up', flush=True); time.sleep(60)"
    )
    model = subprocess.Popen(
        [sys.executable, "-c", script, str(server.pid)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert model.stdout is not None
    assert model.stdout.readline() == "up\n"
    assert model.poll() is None
    server.kill()
    assert model.wait(20) == -9
    server.communicate()


def test_a_jump_of_the_wall_clock_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Presence(tmp_path, "vllm_lora", heartbeat=True)
    monkeypatch.setattr(presence.time, "time", lambda: 1e12)
    assert lost(tmp_path, boot()) == []
    now_ns = presence.boottime_ns()
    monkeypatch.setattr(presence, "boottime_ns", lambda: now_ns + int((SILENCE_S + 1) * 1e9))
    assert [loss.model for loss in lost(tmp_path, boot())] == ["vllm_lora"]
    record.beat()
    assert lost(tmp_path, boot()) == []
