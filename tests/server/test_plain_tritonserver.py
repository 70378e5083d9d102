"""The repository needs no tool of ours: tritonserver, and the environment that README names."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import harness
from tests.server.client import Client
from tests.server.shapes import sampling
from tools import tritonserver

pytestmark = pytest.mark.server


def test_it_starts_and_answers(demo: Path, tmp_path: Path) -> None:
    http, grpc, metrics = harness.free_ports()
    launch = tritonserver.locate(
        extra_env={
            "LORA_SERVING_CONFIG": str(demo / "serving.yaml"),
            "LORA_STATE_DIR": str(tmp_path / "state"),
        }
    )
    command = launch.command(
        [
            f"--model-repository={harness.ROOT / 'model_repository'}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            # Whoever wants no metrics gets answers all the same.
            "--allow-metrics=false",
            f"--http-port={http}",
            f"--grpc-port={grpc}",
            f"--metrics-port={metrics}",
            "--backend-config=python,shm-region-prefix-name=" + (prefix := f"plain_{http}_"),
        ]
    )
    log = tmp_path / "tritonserver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=dict(launch.env), stdout=output, stderr=subprocess.STDOUT
        )
    client = Client(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", harness.keys(demo)["admin"])
    try:
        deadline = time.monotonic() + harness.START_LIMIT_S
        while not is_ready(client):
            assert process.poll() is None and time.monotonic() < deadline, harness.tail(log)
            time.sleep(0.2)
        fields: dict[str, Any] = {"text_input": "Hi"}
        fields["sampling_parameters"] = sampling(max_tokens=2)
        reply = client.infer_http(lora_id="mark_w0001_v1", **fields)
        assert reply.text == "Hi alpha alpha", harness.tail(log)
        assert client.stream_grpc("lora_generate", **fields).replies[-1].served == "base"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{metrics}/metrics")
        assert "Traceback" not in log.read_text(errors="replace")
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(harness.STOP_LIMIT_S)
        finally:
            process.kill()
    assert harness.regions(prefix) == []


def is_ready(client: Client) -> bool:
    try:
        return client.http.get("/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False
