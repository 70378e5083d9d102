"""Operators' decisions, and what is shown of everything."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from python_backend.adapters.catalog import Entry, State
from python_backend.admin import desk as desk_module
from python_backend.admin import warming
from python_backend.breaker import State as Breaking
from python_backend.errors import InvalidArgument, NotFound
from python_backend.guard import LOAD
from tests.unit.python_backend.admin.desk_house import House, run

NAME = "fin_risk_v1"


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nobody reads the snapshot."""
    monkeypatch.setattr(desk_module, "ACKNOWLEDGE_S", 0.0)


def test_disabled_and_pinned_survive_a_restart(tmp_path: Path) -> None:
    async def first(house: House) -> None:
        for number in (1, 2, 3):
            house.write(house.root / f"fin_risk_v{number}")
            await house.ended("add", lora_id=f"fin_risk_v{number}")
        assert await house.ask("disable", lora_id=NAME) == {"status": "disabled", "changed": True}
        assert await house.ask("disable", lora_id=NAME) == {"status": "disabled", "changed": False}
        await house.ask("pin", lora_id="fin_risk_v2")
        with pytest.raises(InvalidArgument, match="at most 1 may be pinned"):
            await house.ask("pin", lora_id="fin_risk_v3")
        await house.ask("pin", lora_id="fin_risk_v2")
        with pytest.raises(NotFound):
            await house.ask("pin", lora_id="fin_none_v1")

    async def second(house: House) -> None:
        listed = await house.listed()
        assert (listed[NAME]["state"], listed["fin_risk_v2"]["pinned"]) == ("disabled", True)
        assert house.snapshot()["entries"][NAME]["state"] == "disabled"
        with pytest.raises(NotFound):
            await house.ask("alias_set", alias="risk", to="fin_none_v1")
        await house.ask("enable", lora_id=NAME)
        await house.ask("unpin", lora_id="fin_risk_v2")
        assert house.snapshot()["entries"][NAME]["state"] == "ready"
        await house.ask("pin", lora_id=NAME)
        await house.ask("remove", lora_id=NAME)
        decided = json.loads((house.settings.state_dir / "operator.json").read_text())
        assert (decided["disabled"], decided["pinned"]) == ([], [])

    run(tmp_path, first)
    run(tmp_path, second)


def test_one_slot_takes_no_pin(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        house.write(house.root / NAME)
        await house.ended("add", lora_id=NAME)
        with pytest.raises(InvalidArgument, match="at most 0"):
            await house.ask("pin", lora_id=NAME)

    run(tmp_path, test, max_loras=1)


def test_warm_status_and_tiers(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        house.write(house.root / NAME)
        await house.ended("add", lora_id=NAME)
        assert (await house.ended("warm", lora_id=NAME))["result"] == "warm"
        house.desk._view._asked_s = float("-inf")
        row = (await house.listed())[NAME]
        assert (row["tiers"], row["uses"]) == (["slot", "host", "disk"], 0)
        digest = row["digest"]
        with house.keeper.versions.lease(NAME, digest):
            row = (await house.listed())[NAME]
        assert row["uses"] == 1 and 0 <= row["last_use_s_ago"] < 5
        status = await house.ask("status")
        assert status["adapters"]["ready"] == 1 and sum(status["adapters"].values()) == 1
        assert (status["engine_version"], status["boot_id"]) == ("fake", "b" * 32)
        house.engine.failing.add("fin_bad_v1")
        house.write(house.root / "fin_bad_v1", "two")
        await house.ended("add", lora_id="fin_bad_v1")
        failed = await house.ended("warm", lora_id="fin_bad_v1")
        assert failed["error"] == "adapter_failed: this adapter cannot be loaded by the engine."

    run(tmp_path, test)


def test_a_breakers_warning_holds_warming_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "ASK_S", 0.01)

    async def test(house: House) -> None:
        house.write(house.root / NAME)
        await house.ended("add", lora_id=NAME)
        house.held_back = True
        job = (await house.ask("warm", lora_id=NAME))["job"]
        await asyncio.sleep(0.05)
        found = await house.ask("job", job=job)
        assert (found["state"], found["step"]) == ("running", "held back by a breaker")
        assert house.engine.counts["preload"] == 0
        house.held_back = False
        while (found := await house.ask("job", job=job))["state"] == "running":
            await asyncio.sleep(0.01)
        assert (found["result"], house.engine.counts["preload"]) == ("warm", 1)
        house.held_back = True
        monkeypatch.setattr(warming, "PATIENCE_S", 0.02)
        failed = await house.ended("warm", lora_id=NAME)
        assert failed["error"].startswith("breaker_open: ")

    run(tmp_path, test)


def test_a_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(house: House) -> None:
        house.write(house.root / NAME)
        await house.ended("add", lora_id=NAME)
        before = house.snapshot()["generation"]
        monkeypatch.setattr(time, "time_ns", lambda: 1)
        await house.ask("disable", lora_id=NAME)
        assert house.snapshot()["generation"] == before + 1

    run(tmp_path, test)


def test_aliases(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        for name in ("fin_risk_v1", "fin_risk_v2", "svc_chat_v1"):
            house.write(house.root / name)
            await house.ended("add", lora_id=name)
        await house.ask("alias_set", alias="fin_risk", to="fin_risk_v2")
        assert house.snapshot()["aliases"]["fin_risk"]["to"] == "fin_risk_v2"
        await house.ask("alias_rollback", alias="fin_risk")
        assert house.snapshot()["aliases"]["fin_risk"]["to"] == "fin_risk_v1"
        with pytest.raises(InvalidArgument, match="nothing to go back to"):
            await house.ask("alias_rollback", alias="fin_risk")
        with pytest.raises(InvalidArgument, match="different departments"):
            await house.ask(
                "alias_set", alias="fin_risk", to="fin_risk_v1", canary="svc_chat_v1", share=0.5
            )
        await house.ask(
            "alias_set", alias="fin_risk", to="fin_risk_v1", canary="fin_risk_v2", share=0.5
        )
        (row,) = (await house.ask("aliases"))["aliases"]
        assert (row["canary"], row["share"], row["set_by"]) == ("fin_risk_v2", 0.5, "operator")

    run(tmp_path, test, aliases={"fin_risk": "fin_risk_v1"})


def test_cancel_is_for_ones_own_department(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        assert await house.ask("cancel", request_uid="u1") == {"cancelled": True}
        assert await house.ask("cancel", request_uid="u1", by_admin=False) == {"cancelled": False}
        assert house.cancelled == [("u1", None), ("u1", "ops")]

    run(tmp_path, test)


def test_a_thousand_are_listed_fast(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        shelf = house.keeper.shelf
        for number in range(1000):
            name = f"fin_a{number}_v1"
            shelf._entries[name] = Entry(name, State.READY, "d" * 64, 8, 1 << 20)
            house.keeper.versions.register(name, "d" * 64, Path("/staged"))
        await house.ask("list")
        took = []
        for _ in range(5):
            began = time.perf_counter()
            found = await house.ask("list")
            took.append(time.perf_counter() - began)
        assert len(found["adapters"]) == 1000
        print(f"list of 1000: {min(took) * 1e3:.1f} ms")
        assert min(took) < 0.1

    run(tmp_path, test)


def test_breakers_are_shown_and_reset(tmp_path: Path) -> None:
    async def test(house: House) -> None:
        assert {
            row["breaker"]: row["state"] for row in (await house.ask("breakers"))["breakers"]
        } == {
            "switch_rate/engine": "closed",
            "fragmentation/device": "closed",
            "fragmentation/shm": "closed",
            "load_latency/host": "closed",
        }
        house.guard.load_latency.value(1.0, 0.0)
        first, *_ = (await house.ask("breakers"))["breakers"]
        assert first == {
            "breaker": "load_latency/host",
            "state": "open",
            "opened": 1,
            "retry_after_s": first["retry_after_s"],
        }
        reset = {"status": "reset", "changed": True}
        assert await house.ask("breaker_reset", breaker="load_latency/host") == reset
        assert await house.ask("breaker_reset", breaker="load_latency") == {
            **reset,
            "changed": False,
        }
        assert house.guard.states()[LOAD] is Breaking.CLOSED
        for none in ("load_latency/shm", "nothing", "routing/fin_risk_v1"):
            with pytest.raises(NotFound):
                await house.ask("breaker_reset", breaker=none)

    run(tmp_path, test)
