"""The official backend's files and parameters, on a server that was started with others."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.server import second
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Reply, expect_error, sampling

PROMPT = "The capital of France is"
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")
MODEL_LEN = 256
ALIAS = "doll"
GONE = "mark_gone_v1"


class Second:
    """The server and where its adapters come from."""

    def __init__(self, server: Server, processes: Callable[[], list[int]], markers: list[str]):
        self.server, self.client, self.processes = server, server.client, processes
        #: Under the adapter root, by its lora_id in multi_lora.json, by an alias there.
        self.in_root, self.by_id, self.by_alias = markers

    def ask(self, **names: Any) -> Reply:
        in_sampling = {k: v for k, v in names.items() if k == "lora_name"}
        fields = {k: v for k, v in names.items() if k not in in_sampling}
        return self.client.infer_grpc(
            text_input=PROMPT,
            sampling_parameters=sampling(max_tokens=1, **in_sampling),
            exclude_input_in_output=True,
            **fields,
        )


@pytest.fixture(scope="module")
def other(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Second]:
    """model.json instead of serving.yaml's engine section, multi_lora.json, no vllm: metrics."""
    folder = tmp_path_factory.mktemp("official")
    version = second.copy_repository(folder / "models")
    second.set_parameter(version.parent / "config.pbtxt", "REPORT_CUSTOM_METRICS", "false")
    settings = yaml.safe_load((demo / "serving.yaml").read_text())
    markers = sorted(json.loads((demo / "markers.json").read_text()))[:3]
    engine = {**settings.pop("engine"), "model": str(demo / "model"), "max_model_len": MODEL_LEN}
    # As the official backend's users write it: a string, too.
    (version / "model.json").write_text(json.dumps({**engine, "enable_lora": "true"}))
    listed = {markers[1]: "one", ALIAS: "two", GONE: "nowhere"}
    paths = {name: str(folder / "listed" / place) for name, place in listed.items()}
    (version / "multi_lora.json").write_text(json.dumps(paths))
    shutil.copytree(demo / "adapters" / markers[0], folder / "demo" / "adapters" / markers[0])
    shutil.copytree(demo / "adapters" / markers[1], folder / "listed" / "one")
    shutil.copytree(demo / "adapters" / markers[2], folder / "listed" / "two")
    for name in ("policy.yaml", "keys.json", "markers.json", "signing-keys.yaml"):
        shutil.copy2(demo / name, folder / "demo" / name)
    settings["aliases"] = {ALIAS: markers[2]}
    (folder / "demo" / "serving.yaml").write_text(yaml.safe_dump(settings))
    with second.running(folder / "demo", folder / "state", folder / "models", *EXPLICIT) as running:
        yield Second(*running, markers)


@pytest.fixture
def client(other: Second) -> Client:
    return other.client


def test_model_json_holds_the_engine_arguments(other: Second, client: Client) -> None:
    assert other.ask().text == " Paris"
    with expect_error("invalid_argument", f"the model takes at most {MODEL_LEN - 1}"):
        client.infer_grpc(text_input="a " * 400, sampling_parameters=sampling())


def test_multi_lora_json_adds_to_the_adapter_root(other: Second) -> None:
    for lora_id in (other.in_root, other.by_id):
        reply = other.ask(lora_id=lora_id)
        assert reply.text == f" {other.server.markers[lora_id]}"
        assert re.fullmatch(rf"{lora_id}@[0-9a-f]{{12}}", reply.served)


@pytest.mark.parametrize("field", ["lora_name", "lora_id"])
def test_a_free_name_in_multi_lora_json_is_an_alias(other: Second, field: str) -> None:
    reply = other.ask(**{field: ALIAS})
    assert reply.text == f" {other.server.markers[other.by_alias]}"
    assert reply.served.startswith(f"{other.by_alias}@")
    assert other.ask(**{field: other.by_alias}).text == reply.text


def test_a_listed_folder_that_is_missing_blocks_nobody_else(other: Second) -> None:
    with expect_error("adapter_failed"):
        other.ask(lora_id=GONE)
    assert "there is no folder of that name" in other.server.log.read_text(errors="replace")


def test_metrics_are_absent_when_not_wanted(other: Second) -> None:
    other.ask()
    text = other.server.metrics_text()
    assert "nv_inference_count" in text
    assert "vllm:" not in text


def test_a_dead_engine_unloads_its_model(other: Second, client: Client) -> None:
    """The last test of this server: nothing answers after it."""
    assert other.ask().text == " Paris"
    (engine,) = (p for p in other.processes() if _command(p).startswith("VLLM::EngineCore"))
    os.kill(engine, signal.SIGKILL)
    _wait(lambda: "EngineDeadError" in other.server.log.read_text(errors="replace"))
    began = time.monotonic()
    with expect_error("unavailable", "the engine has stopped"):
        other.ask()
    assert time.monotonic() - began < 2
    _wait(lambda: client.http.get("/v2/models/vllm_lora/ready").status_code == 400)
    # An ensemble without one of its models is no more ready than the model.
    _wait(lambda: client.http.get("/v2/models/lora_generate/ready").status_code == 400)
    with expect_error("unavailable"):
        other.ask()
    _wait(lambda: _states(other)["vllm_lora"] == "UNAVAILABLE")


def _states(other: Second) -> dict[str, str]:
    """Every model's state by the repository's index."""
    headers = {"admin-key": other.server.admin_key}
    index = other.client.post("/v2/repository/index", headers=headers)
    return {model["name"]: model.get("state", "") for model in index.json()}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
