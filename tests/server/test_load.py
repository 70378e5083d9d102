"""A short load test, as `make load` runs it: with a server of its own, a budget, two workers."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from loadtests import results
from loadtests.configurations import CONFIGURATIONS, PROTECTED
from loadtests.house import build_house
from tests.server.harness import ROOT, Server, free_ports
from tests.unit.loadtests.records import most_at_once

USERS = 6
BUDGET = """
[isolation.at_most]
wrong_routes = 0
errors = 0.0
transport = 0
[isolation.at_least]
requests.fin = 10
requests.svc = 6
"""
SIZE = f"--seconds 24 --users {USERS} --adapters 3 --tokens 12 --rate 1.5 --workers 2".split()


def load(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loadtests", "run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_short_isolation_run(demo: Path, tmp_path: Path) -> None:
    before = {path.name for path in Path(tempfile.gettempdir()).glob("load-*")}
    out, budget = tmp_path / "out", tmp_path / "budget.toml"
    budget.write_text(BUDGET)
    done = load("isolation", *SIZE, "--demo", str(demo), "--out", str(out), "--budget", str(budget))
    assert done.returncode == 0, done.stdout + done.stderr
    run = results.read_run(out)
    assert run.ok and run.configuration == PROTECTED and all(run.protections.values())
    assert {verdict.name for verdict in run.budget if verdict.samples} >= {"wrong_routes", "errors"}
    requests = list(results.requests(out))
    good = [request for request in requests if request.kind == "good"]
    assert {request.route for request in good} == {"right"}
    assert {request.tokens for request in good if request.department == "svc"} == {12}
    # gRPC streams that are not really concurrent would never all be under way.
    streams = [request for request in good if request.department == "svc"]
    assert {request.user for request in streams} == {"grpc_stream", "http_stream"}
    assert most_at_once(streams) == USERS
    grpc = [request for request in streams if request.user == "grpc_stream"]
    assert most_at_once(grpc) == USERS // 2
    samples = list(results.samples(out))
    assert len(samples) > 15
    assert {"tritonserver", "stub of vllm_lora"} <= samples[5].rss.keys()
    assert any("lora_requests_in_engine" in name for name in samples[-1].metrics or {})
    with (out / "locust_stats.csv").open() as file:
        kinds = {row["Type"] for row in csv.DictReader(file)}
    assert {"grpc_stream", "http_stream", "TTFT", "inter-token", "tokens"} <= kinds
    left = {path.name for path in Path(tempfile.gettempdir()).glob("load-*")}
    assert left == before
    assert not [name for name in map(_command, psutil.process_iter()) if str(out) in name]
    names = {path.name for path in out.iterdir()}
    # What held keys, and what only workers need, is gone.
    assert {"run.json", "requests.jsonl", "samples.jsonl", "locust_stats.csv"} <= names
    assert not names & {"plan.json", "zero", "requests.0.jsonl", "requests.1.jsonl"}


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture(scope="module")
def house(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose keys the running server does not know."""
    folder = tmp_path_factory.mktemp("load") / "house"
    folder.mkdir()
    build_house(folder, demo, {"fin": 1, "svc": 4}, 0, {}, CONFIGURATIONS[PROTECTED])
    return folder


def refused(ports: tuple[int, int, int], house: Path, out: Path) -> str:
    """The one line in which a run against a server on these ports is refused."""
    address = f"127.0.0.1:{','.join(map(str, ports))}"
    done = load("isolation", "--server", address, "--demo", str(house), "--out", str(out))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


def test_a_server_that_does_not_know_the_keys(server: Server, house: Path, tmp_path: Path) -> None:
    said = refused(server.ports, house, tmp_path / "out")
    assert "answers unauthenticated: its policy does not know the key" in said
    for key in json.loads((house / "keys.json").read_text()).values():
        assert key not in said


def test_a_server_that_is_not_up(house: Path, tmp_path: Path) -> None:
    said = refused(free_ports(), house, tmp_path / "out")
    assert "no server of ours at 127.0.0.1" in said
