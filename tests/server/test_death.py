"""Whatever part of the server is killed: nobody waits, nothing stays, and it comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from python_backend import runtime
from tests.server.shapes import Refused
from tests.server.supervised import Supervised, load
from tools.serving import shm
from tools.serving.state import StateDirectory

#: The promise is 2 s; a machine that runs everything else beside it may be slower.
ANSWER_LIMIT_S = 4.0
BACK_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
#: What Triton's own clients see when the server goes away under them.
GONE = "UNAVAILABLE"
OURS = "unavailable"


@pytest.fixture(scope="module")
def house(demo: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    house = Supervised(demo, tmp_path_factory.mktemp("death") / "state", "--restart")
    yield house
    house.end()


def kill(
    house: Supervised, parts: list[str], ends: dict[str, tuple[str, ...]], capsys: Any
) -> None:
    """Kills ``parts`` under load. ``ends``: how the callers of each door end."""
    with load(house.server.new_client) as callers:
        pids = [house.pid(part) for part in parts]
        killed_s = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.7)
        late = "none"
        client = house.server.new_client()
        try:
            client.infer_grpc(text_input="Late.", lora_id="mark_w0003_v1")
            late = "answered"
        except Refused as error:
            late = error.code or error.status
        late_s = time.monotonic() - killed_s
        client.close()
    took = {f"{n} {c.door}": round(c.ended_s - killed_s, 2) for n, c in enumerate(callers)}
    why = house.wait_for("restarting: ", 10)
    house.wait_for("ready ", 240)
    back_s = time.monotonic() - killed_s
    words = house.server.markers
    fresh = house.server.new_client()
    for lora_id, word in words.items():
        reply = fresh.answer("stream lora_generate", text_input="Who?", lora_id=lora_id)
        assert word in reply.text, lora_id
    fresh.close()
    with capsys.disabled():
        print(
            f"\n{'+'.join(parts)}: ended after {took}, late caller {late} at {late_s:.1f} s, ",
            end="",
        )
        print(f"back after {back_s:.1f} s; {why}")
    for caller in callers:
        assert caller.how in ends[caller.door], caller
        assert caller.ended_s - killed_s < ANSWER_LIMIT_S, took
        if caller.how == OURS:
            assert "retry_after=" in caller.message
        assert "lora_serving_" not in caller.message
        assert "/dev/shm" not in caller.message
    assert late in (OURS, GONE)
    assert late_s < ANSWER_LIMIT_S
    # On a machine so busy that a first start takes longer, so does every other.
    assert back_s < max(BACK_LIMIT_S, 2 * house.start_s)
    assert house.left() == [], "of the life before"
    house.note()


EVERY_DOOR = ("lora_stream", "lora_infer", "lora_generate")


@pytest.mark.parametrize(
    ("parts", "gone"),
    [
        # The engine model lives and answers for the engine itself.
        (["EngineCore"], ()),
        # Triton tells an ensemble's caller nothing when the last step's process has died: only
        # the end of the server ends the wait.
        (["vllm_lora"], ("lora_generate",)),
        (["lora_gate"], ()),
        # Nor a dead door's callers; and Triton delivers no more answers of the engine to anybody
        # once it has one for a dead door.
        (["lora_stream", "lora_infer"], EVERY_DOOR),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_kill(house: Supervised, parts: list[str], gone: tuple[str, ...], capsys: Any) -> None:
    ends = {door: (GONE,) if door in gone else (OURS,) for door in EVERY_DOOR}
    if len(gone) == len(EVERY_DOOR):
        ends["lora_generate"] = (GONE, OURS)
    kill(house, parts, ends, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["tritonserver", "adapter_fusion", "lora_admin"])
def test_kill_what_no_caller_waits_for(demo: Any, tmp_path: Path, part: str, capsys: Any) -> None:
    """A part is gone, and all of it starts anew. Only tritonserver's own end tells its callers."""
    house = Supervised(demo, tmp_path / "state", "--restart")
    how = (GONE,) if part == "tritonserver" else (OURS,)
    try:
        kill(house, [part], dict.fromkeys(EVERY_DOOR, how), capsys)
    finally:
        house.end()


def test_a_stop_under_load_is_in_time_and_leaves_nothing(house: Supervised) -> None:
    with load(house.server.new_client):
        began = time.monotonic()
        house.process.terminate()
        code = house.process.wait(STOP_LIMIT_S)
        assert time.monotonic() - began < STOP_LIMIT_S
    assert code == 0, house.errors.read_text()
    assert house.left() == []


def test_what_a_killed_server_leaves_goes_with_the_next_start(demo: Any, tmp_path: Path) -> None:
    house = Supervised(demo, tmp_path / "state")
    triton, core = house.triton, house.pid("EngineCore")
    (prefix,) = house.prefixes
    stale, foreign = shm.SHM / f"{prefix}stale", shm.SHM / f"other_{prefix}"
    foreign.touch()
    try:
        # Nobody is left to clean up.
        house.process.kill()
        house.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(triton, signal.SIGKILL)
        until = time.monotonic() + 15
        while (
            left := [p for p in house.left() if p.startswith("pid")]
        ) and time.monotonic() < until:
            time.sleep(0.1)
        assert left == [], "processes outlive the server"
        assert runtime.process_start(core) is None
        # Triton's own regions may have gone with its last process; one that has not is this.
        stale.touch()
        state = StateDirectory(house.state)
        state.new_shm_prefix()
        assert house.left() == []
        assert foreign.exists()
    finally:
        foreign.unlink()
        stale.unlink(missing_ok=True)
        house.end()
