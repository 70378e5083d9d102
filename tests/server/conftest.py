"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server import harness
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Call, Reply

WAYS = ("generate", "http", "grpc", "stream ensemble", "stream door")
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


@pytest.fixture(params=WAYS)
def call(request: pytest.FixtureRequest, client: Client) -> Call:
    """One of the ways to send a request; an answer is a Reply or a Stream."""

    def generate(**fields: Any) -> Reply:
        return client.generate("lora_generate", **fields)

    def stream(model: str) -> Call:
        return lambda **fields: client.stream_grpc(model, **{"stream": False, **fields})

    ways: dict[str, Call] = {
        "generate": generate,
        "http": client.infer_http,
        "grpc": client.infer_grpc,
        "stream ensemble": stream("lora_generate"),
        "stream door": stream("lora_stream"),
    }
    return ways[request.param]


@pytest.fixture
def still_healthy(client: Client) -> Iterator[None]:
    """After each bad request a good one is answered."""
    yield
    reply = client.infer_grpc(
        text_input="Hi", lora_id="mark_w0001_v1", parameters={"max_tokens": 1}
    )
    assert reply.text == "Hi alpha"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed and _SERVER:
        title = f"last {harness.TAIL_LINES} lines of the server's log"
        report.sections.append((title, _SERVER[0].tail()))
    return report
