"""Adapters that a serving server fetches; the answer itself says which bytes arrived."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import deserialize

from tests.badadapters.files import CONFIG_FILE, SMOLLM2, WEIGHTS_FILE, Adapter, Array
from tests.badadapters.shard_kinds import shard
from tests.server import harness
from tests.server.admin_tools import ask, ended, listed, says
from tests.server.harness import Server
from tests.server.shapes import expect_error
from tests.unit.python_backend.adapters.web_house import Web, serving

pytestmark = pytest.mark.server

NAME = "mark_fetched_v1"
read: Callable[[bytes], list[tuple[str, Any]]] = deserialize


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving({}) as web:
        yield web


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, web: Web) -> Iterator[Server]:
    house = tmp_path_factory.mktemp("sources")
    harness.make_demo(house / "demo", markers=2)
    path = house / "demo" / "serving.yaml"
    body = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(body | {"sources": {"allow": [f"{web.url}/lora"]}}))
    with harness.running(house / "demo", house / "state") as server:
        yield server


def files(folder: Path) -> dict[str, bytes]:
    return {f"/lora/{path.name}": path.read_bytes() for path in folder.iterdir()}


def in_parts(folder: Path, into: Path) -> None:
    """The adapter of ``folder`` in two weight files, its names without their prefix."""
    tensors = {
        name.removeprefix("base_model.model."): Array(
            value["dtype"], tuple(value["shape"]), bytes(value["data"])
        )
        for name, value in read((folder / WEIGHTS_FILE).read_bytes())
    }
    shard(Adapter(SMOLLM2, json.loads((folder / CONFIG_FILE).read_text()), tensors), into)


def test_fetched_adapters_say_their_words(server: Server, web: Web, tmp_path: Path) -> None:
    client, source = server.client, f"{web.url}/lora"
    (first, word), (second, other) = list(server.markers.items())[:2]
    root = server.demo / "adapters"
    web.files = files(root / first)
    # Cut once on its way, and taken up.
    web.cuts = [len(web.files[f"/lora/{WEIGHTS_FILE}"]) // 2]
    added = ended(
        client, "add", lora_id=NAME, source=source, sha256=listed(client)[first]["digest"]
    )
    assert added["result"] == "added", added
    assert says(client, NAME)[0] == word

    # In parts, and under vLLM's other names: the same answers as in one file.
    in_parts(root / second, tmp_path / "parts")
    web.files = files(tmp_path / "parts")
    updated = ended(client, "update", lora_id=NAME, source=source)
    assert updated["result"] == "updated", updated
    assert says(client, NAME)[0] == says(client, second)[0] == other

    web.status = {f"/lora/{CONFIG_FILE}": 403}
    failed = ended(client, "update", lora_id=NAME, source=source)
    assert failed["error"].startswith("adapter_failed: source_forbidden: "), failed
    for elsewhere in (web.url, f"{web.url}/lora/../x", "https://169.254.169.254/x", "s3://b/x"):
        with expect_error("invalid_argument", "not allowed by settings"):
            ask(client, "add", lora_id=NAME, source=elsewhere)
    assert says(client, NAME)[0] == other
    assert not [path for path in root.iterdir() if path.name.startswith(".admin-")]
