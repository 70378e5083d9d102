"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server import harness
from tests.server.client import Client
from tests.server.harness import Server

_SERVER: list[Server] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/server/" in str(item.path):
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A demo folder with fresh keys and eight markers."""
    out = tmp_path_factory.mktemp("server") / "demo"
    harness.make_demo(out)
    return out


@pytest.fixture(scope="session")
def server(demo: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The running server."""
    with harness.running(demo, tmp_path_factory.mktemp("state") / "state") as running:
        _SERVER.append(running)
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Client:
    """The operator's client: may use everything."""
    return server.client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed and _SERVER:
        title = f"last {harness.TAIL_LINES} lines of the server's log"
        report.sections.append((title, _SERVER[0].tail()))
    return report
