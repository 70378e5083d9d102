"""Two small servers and the gateways in front of them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests import debian
from tests.gateway import front
from tests.gateway.front import Front
from tests.server import harness, second
from tests.server.harness import Server
from tools.serving.process import ServerProcess

#: Three times the slots of a server: sent to both in turn, an adapter is seldom where it was.
MARKERS, SLOTS = 12, 4
SETTINGS: dict[str, Any] = {
    "observation": {"canary_s": 0},
    "admission": {"reserve_seats": 0, "reserve_slots": 0},
    # On a machine that two engines share they would ration what is to be counted.
    "breakers": {"switch_rate": {"enforce": False}, "load_latency": {"enforce": False}},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gateway/" in str(item.path):
            item.add_marker(pytest.mark.gateway)


class House(NamedTuple):
    """Two servers of one demo folder."""

    servers: list[Server]
    processes: list[ServerProcess]

    @property
    def key(self) -> str:
        return self.servers[0].keys["admin"]

    @property
    def words(self) -> dict[str, str]:
        """lora_id of each marker adapter and the word it says."""
        return self.servers[0].markers

    def members(self, *which: int) -> list[dict[str, Any]]:
        """These servers as a group has them."""
        ports = [self.servers[at].ports for at in which]
        return [{"host": "127.0.0.1", "http": http, "grpc": grpc} for http, grpc, _ in ports]


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    debian.program("nginx", "nginx")
    folder = tmp_path_factory.mktemp("fleet")
    demo = folder / "demo"
    harness.make_demo(demo, markers=MARKERS)
    settings = yaml.safe_load((demo / "serving.yaml").read_text())
    engine = {**settings["engine"], "max_loras": SLOTS, "max_num_seqs": 4}
    text = yaml.safe_dump({**settings, **SETTINGS, "engine": engine})
    (demo / "serving.yaml").write_text(text)
    second.copy_repository(folder / "models")
    # What no test here asks for need not start.
    for model in ("adapter_fusion", "lora_admin"):
        shutil.rmtree(folder / "models" / model)
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(second.started(demo, folder / name, folder / "models"))
            for name in ("one", "two")
        ]
        for server, process in both:
            second.wait_until_ready(server, process)
        yield House([server for server, _ in both], [process for _, process in both])


@pytest.fixture(scope="session")
def by_group(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A gateway with a server for each of two groups, with TLS."""
    odd = "mark_w00[01][13579]_v1"
    groups = {
        "odd": {"adapters": [odd], "servers": house.members(0)},
        "even": {"adapters": ["mark_w00[01][02468]_v1"], "servers": house.members(1)},
    }
    folder = tmp_path_factory.mktemp("gateways")
    with front.running(folder / "by-group", groups, tls=True) as running:
        yield running


def one_group(house: House, folder: Path, balance: str) -> contextlib.AbstractContextManager[Front]:
    """A gateway with both servers for everything."""
    group = {"adapters": ["*"], "servers": house.members(0, 1)}
    return front.running(folder, {"all": group}, balance=balance, default_group="all", down_s=60)
