"""A real Prometheus with our configuration and rules, scraping the real server."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests import debian
from tests.server import harness
from tests.server.client import Client
from tests.server.harness import ROOT, Server
from tests.server.shapes import sampling

CONFIG = ROOT / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    binary = debian.program("prometheus", "prometheus")
    with scraping(binary, server, tmp_path_factory.mktemp("prometheus")) as api:
        yield api


@contextlib.contextmanager
def scraping(binary: Path, server: Server, folder: Path) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes the server each second; its HTTP API."""
    config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(CONFIG / "rules.yml")]
    targets = [f"127.0.0.1:{server.ports[2]}"]
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port, _, _ = harness.free_ports()
    command = [str(binary), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10) as api:
            yield api
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait(
    api: httpx.Client, path: str, done: Callable[[Any], bool], limit_s: float = 60, **asked: str
) -> Any:
    deadline, data = time.monotonic() + limit_s, None
    while time.monotonic() < deadline:
        try:
            data = api.get(path, params=asked).json().get("data")
        except (httpx.HTTPError, ValueError):
            data = None
        if data is not None and done(data):
            return data
        time.sleep(0.3)
    raise AssertionError(f"{path} {asked}: {data}")


def test_it_scrapes_and_its_rules_run(prometheus: httpx.Client, client: Client) -> None:
    wait(
        prometheus, "/targets", lambda data: [t["health"] for t in data["activeTargets"]] == ["up"]
    )
    for _ in range(3):
        client.infer_grpc(text_input="Hi", sampling_parameters=sampling(max_tokens=1))
        time.sleep(1.1)
    found = wait(
        prometheus, "/query", lambda data: len(data["result"]) == 4, query="lora_breaker_state"
    )
    signals = {result["metric"]["signal"] for result in found["result"]}
    assert signals == {"switch_rate", "fragmentation", "load_latency", "routing"}
    wait(prometheus, "/query", lambda data: bool(data["result"]), query="lora:requests:rate1m")

    def evaluated(data: Any) -> bool:
        return all(rule["health"] == "ok" for group in data["groups"] for rule in group["rules"])

    rules = wait(prometheus, "/rules", evaluated)
    assert sum(len(group["rules"]) for group in rules["groups"]) == 20
