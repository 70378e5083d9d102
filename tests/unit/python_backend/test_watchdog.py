"""The engine's death is noticed and told, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from python_backend import presence, runtime, watchdog
from python_backend.errors import Unavailable
from python_backend.watchdog import Watchdog


class House:
    def __init__(self, run_dir: Path) -> None:
        self.alive, self.given_up = True, ""
        self.failed: list[Unavailable] = []
        self.deaths = 0
        self.run_dir = run_dir
        self.dog = Watchdog(
            presence.Presence(run_dir, "vllm_lora", heartbeat=True),
            alive=lambda: self.alive,
            given_up=lambda: self.given_up,
            fail=self.failed.append,
            on_death=self.died,
        )

    def died(self) -> None:
        self.deaths += 1

    def lost(self) -> list[str]:
        return [loss.reason for loss in presence.lost(self.run_dir, runtime.boot_id())]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(watchdog, "_POLL_S", 0.005)
    return House(tmp_path)


def run(house: House, **change: Any) -> None:
    async def scene() -> None:
        house.dog.start()
        await asyncio.sleep(0.05)
        assert (house.failed, house.deaths, house.lost()) == ([], 0, [])
        for name, value in change.items():
            setattr(house, name, value)
        await asyncio.sleep(0.1)

    asyncio.run(scene())


def test_a_death_fails_everybody_and_is_published(house: House) -> None:
    run(house, alive=False)
    (error,) = house.failed
    assert error.message == "unavailable: the engine has stopped. retry_after=30"
    assert house.deaths == 1
    assert house.lost() == ["vllm_lora: the engine has died"]


def test_a_server_given_up_fails_everybody(house: House) -> None:
    run(house, given_up="server: lora_gate has died")
    (error,) = house.failed
    # Why is the operator's business.
    assert error.message == "unavailable: the server is restarting. retry_after=30"
    assert (house.deaths, house.lost()) == (0, [])


def test_an_end_in_order_is_no_death(house: House) -> None:
    async def scene() -> None:
        house.dog.start()
        await asyncio.sleep(0)
        await house.dog.stop()
        house.alive = False
        await asyncio.sleep(0.05)

    asyncio.run(scene())
    assert (house.failed, house.deaths, house.lost()) == ([], 0, [])
    assert list((house.run_dir / presence.FOLDER).iterdir()) == []
