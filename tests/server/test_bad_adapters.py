"""Every bad adapter there is arrives while tokens flow; nobody but its own callers notices."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.badadapters import BOMB, KINDS, make
from tests.server.harness import Server
from tests.server.shapes import expect_error

PROMPT = "Write a long story about a lighthouse keeper."
SAMPLING = json.dumps({"temperature": 0, "max_tokens": 700, "ignore_eos": True})
#: lora_id of each kind.
NAMES = {kind: f"mark_bad{number}_v1" for number, kind in enumerate(sorted(KINDS))}


def catalog(server: Server) -> dict[str, Any]:
    snapshot = json.loads((server.state / "run" / "catalog.json").read_text())
    return dict(snapshot["entries"])


def wait_for(what: str, holds: Any, limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def remove(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


@pytest.fixture
def root(server: Server) -> Iterator[Path]:
    root = server.demo / "adapters"
    yield root
    for path in [*root.glob("mark_bad*"), *root.glob(".mark_bad*")]:
        remove(path)
    wait_for(
        "the bad adapters are still listed",
        lambda: not any(name in catalog(server) for name in NAMES.values()),
    )


def stream(server: Server) -> str:
    client = server.new_client()
    try:
        return client.stream_grpc(
            "lora_stream", text_input=PROMPT, sampling_parameters=SAMPLING
        ).text
    finally:
        client.close()


def test_all_bad_adapters_arrive_during_a_stream(server: Server, root: Path) -> None:
    undisturbed = stream(server)
    found: list[str] = []
    running = threading.Thread(target=lambda: found.append(stream(server)))
    running.start()
    # A folder that was never there cannot arrive.
    arriving = {kind: code for kind, code in KINDS.items() if kind != "no_folder"}
    expected = {NAMES[kind]: make(kind, root / NAMES[kind]) for kind in arriving}
    wait_for(
        "not every bad adapter was judged",
        lambda: expected.keys() <= catalog(server).keys(),
    )
    entries = catalog(server)
    reasons = {name: entries[name]["reason"].split(":", 1)[0] for name in expected}
    assert reasons == expected
    assert {entries[name]["state"] for name in expected} == {"failed"}
    running.join()
    assert found == [undisturbed]
    assert not list(root.rglob(BOMB))

    for name in list(expected)[:5]:
        with expect_error("adapter_failed"):
            server.client.generate("lora_generate", text_input="x", lora_id=name)
    for name, word in server.markers.items():
        reply = server.client.infer_grpc(
            text_input="Say something.",
            lora_id=name,
            exclude_input_in_output=True,
            sampling_parameters='{"temperature": 0, "max_tokens": 4}',
        )
        assert set(reply.text.split()) == {word}
        assert reply.served.startswith(f"{name}@")


def test_an_adapter_comes_changes_and_goes(server: Server, root: Path) -> None:
    first, second = list(server.markers)[:2]
    name, folder = "mark_badcomes_v1", root / "mark_badcomes_v1"

    def says() -> tuple[str, str]:
        reply = server.client.infer_grpc(
            text_input="Say something, and say it at length, whatever comes to your mind.",
            lora_id=name,
            exclude_input_in_output=True,
            sampling_parameters='{"temperature": 0, "max_tokens": 3}',
        )
        (word,) = set(reply.text.split())
        return word, reply.served

    with expect_error("not_found"):
        says()
    shutil.copytree(root / first, folder)
    wait_for("not listed", lambda: name in catalog(server))
    time.sleep(0.3)  # a gate looks at the catalog five times a second
    word, served = says()
    assert word == server.markers[first]

    # Changed in place: the same prompt must not be answered from the old version's cache.
    digest = catalog(server)[name]["digest"]
    for file in (root / second).iterdir():
        shutil.copyfile(file, folder / file.name)
    wait_for("not updated", lambda: catalog(server)[name]["digest"] != digest)
    time.sleep(0.3)
    new_word, new_served = says()
    assert new_word == server.markers[second]
    assert new_served != served

    # A broken copy leaves the version in service, and says why.
    (folder / "adapter_model.safetensors").write_bytes(b"cut off")
    wait_for("not judged", lambda: "update was refused" in catalog(server)[name]["reason"])
    assert says() == (new_word, new_served)

    shutil.rmtree(folder)
    wait_for("still listed", lambda: name not in catalog(server))
    time.sleep(0.3)
    with expect_error("not_found"):
        says()
