"""What operators do to a serving server; the answers themselves say which version served."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.server.admin_tools import PROMPT, ask, copy_marker, ended, listed, says
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Refused, expect_error, from_grpc, grpc_request, sampling
from tools.admin.command import app

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]

ONE, TWO = "mark_admone_v1", "mark_admtwo_v1"


@pytest.fixture(autouse=True)
def _tidy(server: Server, client: Client) -> Iterator[None]:
    yield
    for name in (ONE, TWO):
        shutil.rmtree(server.demo / "adapters" / name, ignore_errors=True)
    end = time.monotonic() + 30
    while {ONE, TWO} & listed(client).keys():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def markers(server: Server) -> list[str]:
    return list(server.markers)


def outcome(client: Client, op: str, name: str) -> str:
    """What came of a command in one word: a status, or an error's code."""
    try:
        if op == "add":
            job = ended(client, op, lora_id=name)
            return str(job["result"] or job["error"].split(":")[0])
        return str(ask(client, op, lora_id=name)["status"])
    except Refused as refused:
        return refused.code


def test_list_and_status(client: Client, server: Server, markers: list[str]) -> None:
    says(client, markers[0])
    rows = listed(client)
    assert set(markers) <= rows.keys()
    row = rows[markers[0]]
    assert (row["state"], row["department"], row["reason"]) == ("ready", "mark", "")
    assert row["uses"] >= 1 and row["last_use_s_ago"] < 60 and row["size_bytes"] > 0
    end = time.monotonic() + 10
    while "slot" not in listed(client)[markers[0]]["tiers"]:
        assert time.monotonic() < end
        time.sleep(0.2)
    status = ask(client, "status")
    assert status["adapters"]["ready"] >= len(markers)
    assert (status["missing"], status["policy_error"]) == ([], None)
    assert 0 < status["slots"]["used"] <= status["slots"]["all"] == 4


def test_who_may(client: Client, server: Server, markers: list[str]) -> None:
    for who in ("fin", "svc", "qa"):
        for op in ("list", "status", "aliases"):
            with expect_error("unauthenticated", "role admin"):
                ask(client, op, key=server.keys[who])
        with expect_error("unauthenticated", "role admin"):
            ask(client, "remove", key=server.keys[who], lora_id=markers[0])
    with expect_error("unauthenticated"):
        ask(client, "list", key="not a key")
    assert says(client, markers[0])[0] == server.markers[markers[0]]


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ('{"op": "list", "op": "list"}', "twice"),
        ('{"op": "drop"}', "op"),
        ('{"op": "remove"}', "lora_id"),
        ('{"op": "remove", "lora_id": "../x"}', "lora_id"),
        ('{"op": "add", "lora_id": "base"}', "reserved"),
        ('{"op": "list", "x": 1}', "no such field"),
        ('{"op": "job", "job": "none"}', "no such job"),
        ('{"op": "add", "lora_id": "mark_admone_v1", "source": "/etc"}', "not allowed by settings"),
        ('{"op": "add", "lora_id": "mark_admone_v1", "source": "s3://b/x"}', "not allowed"),
    ],
)
def test_bad_commands(client: Client, server: Server, command: str, mentions: str) -> None:
    body: dict[str, Any] = {
        "inputs": [
            {"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}
            for name, value in (("command", command), ("credential", server.keys["admin"]))
        ]
    }
    response = client.post("/v2/models/lora_admin/infer", json=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith("invalid_argument: "), response.text
    assert mentions in response.json()["error"]


def test_an_adapter_comes_is_disabled_and_goes(
    client: Client, server: Server, markers: list[str]
) -> None:
    with expect_error("not_found"):
        says(client, ONE)
    copy_marker(server, markers[0], ONE)
    assert ended(client, "add", lora_id=ONE)["result"] in ("added", "exists")
    word, served = says(client, ONE)
    assert word == server.markers[markers[0]]
    assert served == f"{ONE}@{listed(client)[ONE]['digest'][:12]}"

    ask(client, "disable", lora_id=ONE)
    for _ in range(20):
        with expect_error("not_found"):
            says(client, ONE)
    assert listed(client)[ONE]["state"] == "disabled"
    ask(client, "enable", lora_id=ONE)
    assert says(client, ONE)[0] == word

    assert ended(client, "warm", lora_id=ONE)["result"] == "warm"
    ask(client, "pin", lora_id=ONE)
    assert listed(client)[ONE]["pinned"]
    pinned = [name for name in markers[:2] if ask(client, "pin", lora_id=name)]
    with expect_error("invalid_argument", "at most 3"):
        ask(client, "pin", lora_id=markers[2])
    for name in [*pinned, ONE]:
        ask(client, "unpin", lora_id=name)

    assert ask(client, "remove", lora_id=ONE)["status"] == "removed"
    for _ in range(20):
        with expect_error("not_found"):
            says(client, ONE)
    assert not (server.demo / "adapters" / ONE).exists()


def test_what_waits_for_a_slot_is_read_meanwhile(
    client: Client, server: Server, markers: list[str]
) -> None:
    copy_marker(server, markers[0], ONE)
    ended(client, "add", lora_id=ONE)
    slots = ask(client, "status")["slots"]["all"]
    heard: dict[str, str] = {}

    def stream(name: str, tokens: int) -> None:
        other = server.new_client()
        fields = {"sampling_parameters": sampling(max_tokens=tokens, ignore_eos=True)}
        found = other.stream_grpc("lora_stream", text_input=PROMPT, lora_id=name, **fields)
        heard[name] = found.text
        other.close()

    running = [threading.Thread(target=stream, args=(name, 200)) for name in markers[1 : slots + 1]]
    for thread in running:
        thread.start()
    end = time.monotonic() + 20
    while ask(client, "status")["leases"] < slots:
        assert time.monotonic() < end
        time.sleep(0.02)
    waiting = threading.Thread(target=stream, args=(ONE, 2))
    waiting.start()
    # Never used before: it is in the host cache because it waits, and not because it ran.
    while listed(client)[ONE]["tiers"] != ["host", "disk"]:
        assert time.monotonic() < end and ONE not in heard, "it was not read while it waited"
        time.sleep(0.2)
    for thread in (*running, waiting):
        thread.join(60)
    assert heard[ONE].split()[0] == server.markers[markers[0]]
    ask(client, "remove", lora_id=ONE)


def test_a_removal_lets_running_requests_end_and_frees_the_engine(
    client: Client, server: Server, markers: list[str]
) -> None:
    copy_marker(server, markers[1], ONE)
    ended(client, "add", lora_id=ONE)
    texts: list[str] = []

    def stream() -> None:
        other = server.new_client()
        fields = {"sampling_parameters": sampling(max_tokens=200, ignore_eos=True)}
        texts.append(
            other.stream_grpc("lora_stream", text_input=PROMPT, lora_id=ONE, **fields).text
        )
        other.close()

    running = threading.Thread(target=stream)
    running.start()
    end = time.monotonic() + 20
    while not ask(client, "status")["leases"]:
        assert time.monotonic() < end
        time.sleep(0.02)
    job = ask(client, "remove", lora_id=ONE)["job"]
    with expect_error("not_found"):
        says(client, ONE)
    running.join()
    assert len(texts[0].split()) == 200 and set(texts[0].split()) == {server.markers[markers[1]]}
    end = time.monotonic() + 30
    while ask(client, "job", job=job)["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert ask(client, "job", job=job)["result"] == "removed"
    assert ONE not in listed(client)


def test_thirty_two_at_once(client: Client, server: Server, markers: list[str]) -> None:
    copy_marker(server, markers[0], ONE)
    with ThreadPoolExecutor(32) as pool:
        added = list(pool.map(lambda _: outcome(client, "add", ONE), range(32)))
        assert set(added) <= {"added", "exists"} and added.count("added") <= 1
        removed = list(pool.map(lambda _: outcome(client, "remove", ONE), range(32)))
        assert Counter(removed) == {"removed": 1, "not_found": 31}
        copy_marker(server, markers[0], ONE)
        ops = ["disable", "enable", "pin", "unpin"] * 8
        mixed = list(pool.map(lambda op: outcome(client, op, ONE), ["add", *ops, "remove"]))
    assert "internal" not in mixed and "" not in mixed


def test_cancel(client: Client, server: Server) -> None:
    fin = server.new_client("fin")
    uids: list[str] = []
    ends: list[Refused | None] = []

    def stream() -> None:
        fields = {"sampling_parameters": sampling(max_tokens=900, ignore_eos=True)}
        other = server.new_client("fin")
        request: dict[str, Any] = {"text_input": PROMPT, "stream": True, **fields}
        sent = grpc_request("lora_stream", other._with_key(request), None, "1")
        call = other.stub.ModelStreamInfer(iter([sent]), timeout=60)
        error = None
        for message in call:
            if message.error_message:
                error = Refused(message.error_message, "")
            elif message.infer_response.outputs:
                uids.append(from_grpc(message.infer_response).uid)
        ends.append(error)
        other.close()

    running = threading.Thread(target=stream)
    running.start()
    end = time.monotonic() + 20
    while not uids:
        assert time.monotonic() < end
        time.sleep(0.02)
    svc = server.keys["svc"]
    assert ask(client, "cancel", key=svc, request_uid=uids[0]) == {"cancelled": False}
    assert ask(client, "cancel", key=svc, request_uid="0" * 32) == {"cancelled": False}
    assert running.is_alive()
    assert ask(fin, "cancel", request_uid=uids[0]) == {"cancelled": True}
    running.join(timeout=10)
    (error,) = ends
    assert error is not None and error.code == "cancelled"
    assert ask(client, "cancel", request_uid=uids[0]) == {"cancelled": False}
    fin.close()


def test_the_command_line(server: Server, tmp_path: Path, markers: list[str]) -> None:

    key = tmp_path / "key"
    key.write_text(server.keys["admin"])
    where = ["--url", f"http://{server.http}", "--key-file", str(key)]

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*words, *where])
        return done.exit_code, done.output

    code, text = run("list")
    assert code == 0 and all(name in text for name in markers)
    code, text = run("status")
    assert code == 0 and "boot_id" in text
    assert run("warm", markers[0]) == (0, "warm\n")
    code, text = run("remove", "mark_none_v1")
    assert code == 1 and text.startswith("error: not_found: ")
    key.write_text(server.keys["fin"])
    code, text = run("list")
    assert code == 1 and text.startswith("error: unauthenticated: ")
    key.write_text("")
    assert run("list")[0] == 2
