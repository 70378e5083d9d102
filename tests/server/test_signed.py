"""A server that serves some adapters only signed and takes folders from one place.

Its adapter root has accidents, too: they are no order to remove anything.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from python_backend.adapters.weights import WEIGHTS_FILE
from tests.server import access_tools, harness
from tests.server.admin_tools import ask, ended, listed, says
from tests.server.harness import Server
from tests.server.shapes import expect_error, sampling
from tools.audit.findings import Kind

pytestmark = pytest.mark.server

#: ``mark_s…`` must be signed; the demo's own markers need not be.
SIGNED, UNSIGNED, EDITED, SWAPPED, PUBLISHED = (
    f"mark_s{kind}_v1" for kind in ("signed", "unsigned", "edited", "swapped", "published")
)
PROMPT = "Write a long story about a lighthouse keeper."
#: Of another department.
OTHERS = "fin_published_v1"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo folder with signing keys and a place that adapters may be added from."""
    house = tmp_path_factory.mktemp("signed")
    harness.make_demo(house / "demo", markers=2)
    path = house / "demo" / "serving.yaml"
    body = yaml.safe_load(path.read_text())
    body["adapters"] |= {"add_from": [str(house / "incoming")], "settle_s": 0.3}
    body["signing"] = {"keys_file": "keys.yaml", "require": ["mark_s*"]}
    path.write_text(yaml.safe_dump(body))
    keys = str(house / "demo" / "keys.yaml")
    new = ("signing-keys", "new", "--keys", keys)
    harness.tools(*new, "--key-id", "mark-1", "--for", "mark_*")
    harness.tools(*new, "--key-id", "fin-1", "--for", "fin_*")
    harness.tools("signing-keys", "pair", str(house / "acme"))
    trust = ("signing-keys", "trust", "--keys", keys, "--public-key", str(house / "acme.pub"))
    harness.tools(*trust, "--key-id", "acme-1", "--for", "mark_s*")
    (house / "incoming").mkdir()
    return house


@pytest.fixture(scope="module")
def server(house: Path) -> Iterator[Server]:
    with harness.running(house / "demo", house / "state") as server:
        yield server


def prepared(house: Path, server: Server, name: str, marker: int = 0) -> str:
    """A marker under another name, signed, in the place to add from."""
    folder = house / "incoming" / name
    shutil.copytree(house / "demo" / "adapters" / list(server.markers)[marker], folder)
    keys = str(house / "demo" / "keys.yaml")
    harness.tools("sign", str(folder), "--keys", keys, "--key-id", "mark-1")
    return str(folder)


def add(server: Server, name: str, source: str, op: str = "add") -> dict[str, Any]:
    return ended(server.client, op, lora_id=name, source=source)


def test_a_signed_adapter_is_added_and_says_its_word(house: Path, server: Server) -> None:
    words = list(server.markers.values())
    assert add(server, SIGNED, prepared(house, server, SIGNED))["result"] == "added"
    word, served = says(server.client, SIGNED)
    assert word == words[0]
    # An update that is not signed changes nothing.
    other = house / "incoming" / "other"
    shutil.copytree(house / "demo" / "adapters" / list(server.markers)[1], other)
    failed = add(server, SIGNED, str(other), "update")
    assert failed["error"].startswith("adapter_failed: unsigned: "), failed
    assert says(server.client, SIGNED) == (word, served)
    keys = str(house / "demo" / "keys.yaml")
    more = ("--keys", keys, "--key-id", "mark-1", "--lora-id", SIGNED)
    harness.tools("sign", str(other), *more)
    assert add(server, SIGNED, str(other), "update")["result"] == "updated"
    assert says(server.client, SIGNED)[0] == words[1]


def test_a_publishers_adapter_is_served_and_no_edited_one(house: Path, server: Server) -> None:
    words = list(server.markers.values())
    folder = house / "incoming" / PUBLISHED
    shutil.copytree(house / "demo" / "adapters" / list(server.markers)[1], folder)
    harness.tools("sign", str(folder), "--private-key", str(house / "acme"))
    assert add(server, PUBLISHED, str(folder))["result"] == "added"
    word, served = says(server.client, PUBLISHED)
    assert word == words[1]
    # Other weights under the same signature change nothing.
    other = house / "demo" / "adapters" / next(iter(server.markers))
    shutil.copy(other / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    failed = add(server, PUBLISHED, str(folder), "update")
    assert failed["error"].startswith(f"adapter_failed: bad_signature: {WEIGHTS_FILE!r} "), failed
    assert says(server.client, PUBLISHED) == (word, served)
    # His key is not for others' adapters, signed or not.
    harness.tools("sign", str(folder), "--private-key", str(house / "acme"), "--lora-id", OTHERS)
    failed = add(server, OTHERS, str(folder))
    assert failed["error"].startswith("adapter_failed: signing_key: the key 'acme-1' "), failed


def test_unsigned_and_edited_ones_are_refused_by_name(house: Path, server: Server) -> None:
    root = house / "demo" / "adapters"
    edited = Path(prepared(house, server, EDITED))
    (edited / "extra.txt").write_text("x")
    failed = add(server, EDITED, str(edited))
    assert failed["error"].startswith("adapter_failed: bad_signature: 'extra.txt' "), failed
    swapped = prepared(house, server, SWAPPED)
    failed = add(server, EDITED, swapped)
    assert "bad_signature" in failed["error"] and SWAPPED in failed["error"], failed

    # Dropped into the root by hand they are listed, with the reason.
    shutil.copytree(root / next(iter(server.markers)), house / "incoming" / "x")
    (house / "incoming" / "x").rename(root / UNSIGNED)
    edited.rename(root / EDITED)
    reasons = {UNSIGNED: "unsigned", EDITED: "bad_signature"}

    def judged() -> bool:
        return reasons.keys() <= listed(server.client).keys()

    access_tools.wait_until(judged, 30)
    for name, reason in reasons.items():
        row = listed(server.client)[name]
        assert (row["state"], row["reason"].split(":")[0]) == ("failed", reason)
        with expect_error("adapter_failed"):
            says(server.client, name)
    (root / EDITED / "extra.txt").unlink()
    access_tools.wait_until(lambda: listed(server.client)[EDITED]["state"] == "ready", 30)
    assert says(server.client, EDITED)[0] == next(iter(server.markers.values()))
    # What need not be signed is served as ever.
    for name, word in server.markers.items():
        assert says(server.client, name)[0] == word


def problem(server: Server) -> str:
    return str(ask(server.client, "list")["root_problem"] or "")


def test_a_root_that_goes_and_comes_back(house: Path, server: Server) -> None:
    root, moved = house / "demo" / "adapters", house / "demo" / "moved"

    def all_serve() -> bool:
        return all(says(server.client, name)[0] == word for name, word in server.markers.items())

    root.rename(moved)
    access_tools.wait_until(lambda: "cannot be listed" in problem(server), 30)
    assert all_serve()
    failed = add(server, "mark_later_v1", str(house / "incoming" / "other"))
    assert failed["error"].startswith("unavailable: the adapter root cannot be written"), failed
    # As where its file system is not mounted any more.
    root.mkdir()
    access_tools.wait_until(lambda: "another folder" in problem(server), 30)
    assert all_serve()
    root.rmdir()
    moved.rename(root)
    access_tools.wait_until(lambda: not problem(server), 30)
    assert all_serve()


def test_a_folder_that_is_renamed_while_it_is_used(house: Path, server: Server) -> None:
    root, new = house / "demo" / "adapters", "mark_renamed_v1"
    name, word = next(iter(server.markers.items()))
    heard: list[str] = []

    def stream() -> None:
        long = sampling(max_tokens=120, ignore_eos=True)
        client = server.new_client()
        found = client.stream_grpc(
            "lora_stream", text_input=PROMPT, lora_id=name, sampling_parameters=long
        )
        heard.append(found.text)
        client.close()

    running = threading.Thread(target=stream)
    running.start()
    access_tools.wait_until(lambda: ask(server.client, "status")["leases"] > 0, 20)
    (root / name).rename(root / new)
    access_tools.wait_until(lambda: new in listed(server.client), 30)
    assert says(server.client, new)[0] == word
    access_tools.wait_until(lambda: not any(r == name for r in listed(server.client)), 30)
    running.join(60)
    assert set(heard[0].split()) == {word}
    (root / new).rename(root / name)
    access_tools.wait_until(lambda: name in listed(server.client), 30)
    assert says(server.client, name)[0] == word


def test_the_audit_knows_who_did_it(house: Path, server: Server) -> None:
    lines = access_tools.audit(server)
    commands = [line for line in lines if line["event"] == "admin_command"]
    assert any(line["op"] == "update" and line["lora_id"] == SIGNED for line in commands)
    decided = [line for line in lines if line.get("resolved") == "admin:update"]
    assert {line["principal"] for line in decided} == {"operator"}

    def whole() -> bool:
        found = access_tools.verdict(server)
        return not [finding for finding in found.findings if finding.kind is not Kind.NOTE]

    access_tools.wait_until(whole, 20)
