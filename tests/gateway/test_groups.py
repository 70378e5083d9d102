"""One server with an engine for each of two groups, from a rendered repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from python_backend import presence
from tests.gateway import front
from tests.gateway.conftest import SETTINGS
from tests.server import harness, second
from tests.server.harness import Server
from tests.server.shapes import expect_error, grpc_request, sampling
from tools.__main__ import app

GROUPS = ("odd", "even")
WORDS = {"odd": ("mark_w0001_v1", "alpha"), "even": ("mark_w0002_v1", "delta")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose engines have names of their own; the second allows one slot only."""
    folder = tmp_path_factory.mktemp("engines")
    harness.make_demo(folder / "demo", markers=2)
    path = folder / "demo" / "serving.yaml"
    shared = yaml.safe_load(path.read_text())
    engine = {**shared["engine"], "max_loras": 2, "max_num_seqs": 2}
    path.write_text(yaml.safe_dump({**shared, **SETTINGS, "engine": engine}))
    fleet = {
        "serving": "demo/serving.yaml",
        "groups": {
            "odd": {"adapters": ["mark_w0001_*"], "engine": {}},
            "even": {
                "adapters": ["mark_w0002_*"],
                "engine": {"settings": {"limits": {"n": 1}, "engine": {"max_loras": 1}}},
            },
        },
    }
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    words = ["--fleet", str(folder / "fleet.yaml"), "--out", str(folder / "models")]
    done = CliRunner().invoke(app, ["render", "repository", *words])
    assert done.exit_code == 0, done.output
    with second.running(folder / "demo", folder / "state", folder / "models") as (running, _):
        yield running


@pytest.mark.parametrize("group", GROUPS)
def test_each_group_answers_by_its_own_doors(server: Server, group: str) -> None:
    lora_id, word = WORDS[group]
    fields = {"text_input": "Hi", "lora_id": lora_id, "sampling_parameters": sampling(max_tokens=1)}
    for door in (
        f"generate lora_generate_{group}",
        f"sse lora_stream_{group}",
        f"stream adapter_fusion_{group}",
        f"http lora_infer_{group}",
    ):
        assert server.client.answer(door, **fields).text == f" {word}"


def test_the_catalog_is_one_and_settings_are_each_groups_own(server: Server) -> None:
    fields = {"text_input": "Hi", "lora_id": WORDS["odd"][0], "parameters": {"max_tokens": 1}}
    fields["sampling_parameters"] = sampling(max_tokens=1, n=2, temperature=1)
    assert len(server.client.infer_grpc("lora_infer_odd", **fields).texts) == 2
    with expect_error("invalid_argument", "n"):
        server.client.infer_grpc("lora_infer_even", **fields)
    found = server.client.answer("http lora_infer_even", text_input="Hi", lora_id=WORDS["odd"][0])
    assert found.served.startswith(WORDS["odd"][0])


def test_a_ticket_of_one_group_opens_no_other(server: Server) -> None:
    fields = {"text_input": "Hi", "lora_id": WORDS["odd"][0], "credential": server.keys["admin"]}
    decision = server.client.infer_grpc("lora_gate_odd", **fields).outputs
    given = {name: decision[name][0] for name in ("prompt", "request", "ticket")}
    for group in reversed(GROUPS):
        request = grpc_request(f"vllm_lora_{group}", given, {}, "1")
        found = server.client.streams_grpc([request])["1"]
        assert (found.error is None) is (group == "odd")
        if found.error is not None:
            assert found.error.code == "unauthenticated"


def test_metrics_are_told_apart_by_their_model(server: Server) -> None:
    for group in GROUPS:
        test_each_group_answers_by_its_own_doors(server, group)
    models: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.metrics_text()):
        for sample in family.samples:
            models.setdefault(family.name, set()).add(sample.labels.get("model", ""))
    engines = {f"vllm_lora_{group}" for group in GROUPS}
    for name in ("lora_requests", "lora_breaker_state", "vllm:generation_tokens"):
        assert models[name] == engines, name
    assert models["lora_gate_decisions"] == {f"lora_gate_{group}" for group in GROUPS}


def test_operators_name_the_group(server: Server, tmp_path: Path) -> None:
    words = ["list", "--url", f"http://{server.http}", "--json"]
    words += ["--key-file", str(server.demo / "keys.json")]
    for group in GROUPS:
        done = CliRunner().invoke(app, ["admin", "--group", group, *words])
        assert done.exit_code == 0, done.output
        listed = {row["lora_id"] for row in json.loads(done.output)["adapters"]}
        assert listed >= {lora_id for lora_id, _ in WORDS.values()}
    assert CliRunner().invoke(app, ["admin", *words]).exit_code == 1


def test_every_process_is_looked_after_in_one_place(server: Server) -> None:
    found = presence.announced(server.state / "run")
    assert {name for name in found if name.startswith("vllm")} == {
        "vllm_lora_odd",
        "vllm_lora_even",
    }
    assert len(found) == 12


def test_the_gateway_asks_each_engine_by_its_name(server: Server, tmp_path: Path) -> None:
    http, grpc, _ = server.ports
    members = [{"host": "127.0.0.1", "http": http, "grpc": grpc}]
    groups = {
        group: {"adapters": [WORDS[group][0]], "servers": members, "engine": {}} for group in GROUPS
    }
    with front.running(tmp_path / "front", groups) as gateway:
        client = gateway.client(server.keys["admin"])
        for group in GROUPS:
            lora_id, word = WORDS[group]
            reply = client.infer_http(
                headers={"x-lora-id": lora_id},
                text_input="Hi",
                sampling_parameters=sampling(max_tokens=1),
            )
            assert reply.text == f"Hi {word}"
        client.close()
