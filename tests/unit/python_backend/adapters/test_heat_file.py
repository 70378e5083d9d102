"""What was used often is known after a restart, as much cooler as the server was away."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from python_backend.adapters.heat_file import EVERY_S, HeatFile
from python_backend.adapters.tiers import Heat

H = 100.0


class Server:
    """One life of a server: a heat, its file, and two clocks."""

    def __init__(self, path: Path, *, mono: float, wall: float) -> None:
        self.now, self.wall, self.heat = mono, wall, Heat(H)
        self.file = HeatFile(path, self.heat, lambda: self.now, lambda: self.wall)
        self.file.restore()

    def priorities(self) -> dict[str, float]:
        return self.heat.priorities(["fin_a_v1", "fin_b_v1"], self.now)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "heat.json"


def used(path: Path) -> Server:
    server = Server(path, mono=1000.0, wall=5e8)
    for name in ("fin_a_v1", "fin_a_v1", "fin_b_v1"):
        server.heat.note(name, server.now)
    server.now += H
    asyncio.run(server.file.write())
    return server


def test_it_survives_and_cools_while_the_server_is_away(path: Path) -> None:
    before = used(path)
    assert before.priorities() == pytest.approx({"fin_a_v1": 0.85, "fin_b_v1": 0.5})
    # Another boot: the monotonic clock began anew. Away for one half-life.
    after = Server(path, mono=3.0, wall=5e8 + H)
    assert after.priorities() == pytest.approx({"fin_a_v1": 0.7 + 0.075, "fin_b_v1": 0.35 + 0.075})
    after.heat.note("fin_b_v1", after.now)
    assert after.priorities()["fin_b_v1"] == pytest.approx(1.0)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("wall, recency", [(1.0, 0.5), (5e8, 0.5), (9e9, 0.0)])
def test_clocks_that_jumped(path: Path, wall: float, recency: float) -> None:
    used(path)
    after = Server(path, mono=0.0, wall=wall)
    assert after.priorities()["fin_a_v1"] == pytest.approx(0.7 * (recency > 0) + 0.3 * recency)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 2, "saved_s": 1, "uses": {}}',
        '{"version": 1, "saved_s": 1, "uses": {}, "more": 1}',
        '{"version": 1, "saved_s": -1, "uses": {}}',
        '{"version": 1, "saved_s": 1, "uses": {"../x": [1, 1]}}',
        '{"version": 1, "saved_s": 1, "uses": {"fin_a_v1": [NaN, 1]}}',
        '{"version": 1, "saved_s": 1, "uses": {"fin_a_v1": [1]}}',
        '{"version": 1, "saved_s": 1, "uses": {"fin_a_v1": [-1, 1]}}',
        " " * (9 << 20),
    ],
)
def test_what_cannot_be_used_is_a_cold_start(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(text)
    with caplog.at_level(logging.WARNING):
        server = Server(path, mono=0.0, wall=5e8)
    assert server.priorities() == {"fin_a_v1": 0.0, "fin_b_v1": 0.0}
    assert "start cold" in caplog.text
    asyncio.run(server.file.write())
    assert json.loads(path.read_text())["uses"] == {}


def test_a_folder_in_its_place_and_one_that_cannot_be_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        server = Server(path, mono=0.0, wall=5e8)
        asyncio.run(server.file.write())
    assert "start cold" in caplog.text and "cannot be written" in caplog.text
    assert list(path.parent.iterdir()) == [path]


def test_it_is_written_now_and_then_and_only_if_there_is_news(path: Path) -> None:
    async def scenario() -> None:
        server = Server(path, mono=0.0, wall=5e8)
        server.now = EVERY_S
        await server.file.keep(lambda: ["fin_a_v1"])
        assert not path.exists()
        mixture = "fin_a_v1*0.5+fin_b_v1*0.5"
        for name in ("fin_a_v1", "fin_gone_v1", mixture):
            server.heat.note(name, server.now)
        await server.file.keep(lambda: ["fin_a_v1", mixture])
        assert server.heat.ages(server.now).keys() == {"fin_a_v1", mixture}
        assert list(json.loads(path.read_text())["uses"]) == ["fin_a_v1"]
        path.unlink()
        server.heat.note("fin_a_v1", server.now)
        await server.file.keep(lambda: ["fin_a_v1"])
        assert not path.exists()
        server.now += EVERY_S
        await server.file.keep(lambda: ["fin_a_v1"])
        assert path.exists()

    asyncio.run(scenario())
