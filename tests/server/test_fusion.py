"""Mixtures on the real server: what is said follows the weights."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.access_tools import lines_of, wait_until
from tests.server.client import DOORS, Client
from tests.server.harness import Server
from tests.server.shapes import Refused, Reply, expect_error, grpc_request, sampling
from tests.server.test_cancel import BOUND_S, GONE, long_request

SEA = "Tell me about the sea."
FUSION_DOORS = tuple(f"{way} adapter_fusion" for way in ("stream", "generate", "sse"))
ONE, TWO = "mark_w0001_v1", "mark_w0002_v1"


def ask(client: Client, door: str, lora_id: str, **fields: Any) -> Reply:
    fields = {"sampling_parameters": sampling(), "lora_id": lora_id, **fields}
    return client.answer(door, text_input=SEA, **fields)


@pytest.mark.parametrize("door", [*DOORS, *FUSION_DOORS])
def test_words_trade_places_with_the_weights(server: Server, client: Client, door: str) -> None:
    for one, two, word in ((0.9, 0.1, ONE), (0.1, 0.9, TWO)):
        reply = ask(client, door, f"{TWO}*{two}+{ONE}*{one}")
        assert reply.text.split() == [server.markers[word]] * 4
        expression, digest = reply.served.split("@")
        assert expression == f"{ONE}*{one}+{TWO}*{two}"
        assert len(digest) == 12 and int(digest, 16) >= 0
        assert ("fusion_served" in reply.outputs) == (door in FUSION_DOORS)


def test_more_than_two_and_less_than_none(server: Server, client: Client) -> None:
    names = list(server.markers)[:4]
    fifths = "+".join(f"{name}*{0.6 if name == names[2] else 0.1}" for name in names)
    assert ask(client, "grpc lora_infer", fifths).text.split() == [server.markers[names[2]]] * 4
    # A copy with the weight -1 takes all of it away again: base answers.
    base = ask(client, "grpc lora_infer", "base").text
    root = server.demo / "adapters"
    with copied(client, root, ONE, "mark_copy_v1"):
        reply = ask(client, "grpc lora_infer", f"{ONE}*1+mark_copy_v1*-1")
        assert reply.served.startswith(f"mark_copy_v1*-1+{ONE}*1@")
        assert reply.text == base


def test_the_door_says_what_ran(server: Server, client: Client) -> None:
    body = {"mode": "weights", "weights": {TWO: 0.25, ONE: 0.7}}
    reply = client.answer(
        "stream adapter_fusion", text_input=SEA, fusion=json.dumps(body),
        sampling_parameters=sampling(),
    )  # fmt: skip
    assert json.loads(reply.outputs["fusion_served"][0]) == {
        "mode": "weights",
        "expression": f"{ONE}*0.7+{TWO}*0.25",
        "weights": {ONE: 0.7, TWO: 0.25},
        "base": 0.05,
    }
    same = client.generate("lora_generate", text_input=SEA, fusion=json.dumps(body))
    assert same.served == reply.served
    plain = ask(client, "generate adapter_fusion", ONE)
    assert plain.served.startswith(f"{ONE}@") and "fusion_served" not in plain.outputs
    as_it_is = ask(client, "generate adapter_fusion", f"{ONE}*1")
    assert as_it_is.served == plain.served


@pytest.mark.parametrize(
    ("who", "lora_id", "code", "mentions"),
    [
        ("admin", "fin_risk_v1*0.3+svc_chat_v1*0.3+qa_testgen_v1*0.3", "invalid_argument", "24"),
        ("admin", f"{ONE}*1e30", "invalid_argument", "weight of term 1"),
        ("admin", f"{ONE}*NaN+{TWO}*1", "invalid_argument", "weight of term 1"),
        ("admin", f"{ONE}*2+{TWO}*2", "invalid_argument", "add up to 4"),
        ("admin", "+".join([f"{ONE}*0.0001"] * 10_000), "invalid_argument", "4096"),
        ("admin", f"{ONE}*٠.٥", "invalid_argument", "ASCII"),
        ("admin", f"{ONE}*0.5+mark_none_v1*0.5", "not_found", ""),
        ("fin", "fin_risk_v1*0.5", "not_found", ""),
        ("fin", f"fin_risk_v1*0.5+{ONE}*0.5", "not_found", ""),
    ],
)
@pytest.mark.usefixtures("still_healthy")
def test_refused(
    server: Server, client: Client, who: str, lora_id: str, code: str, mentions: str
) -> None:
    for door in ("grpc lora_infer", "stream adapter_fusion"):
        with expect_error(code, mentions) as caught:
            ask(client, door, lora_id, credential=server.keys[who])
        server.gives_nothing_away(caught.value)


@pytest.mark.parametrize("mode", ["mean", 7])
def test_modes_that_are_not_there(client: Client, mode: Any) -> None:
    with expect_error("invalid_argument", "fusion.mode"):
        ask(client, "stream adapter_fusion", f"{ONE}*1", fusion=json.dumps({"mode": mode}))


@contextlib.contextmanager
def copied(client: Client, root: Path, marker: str, name: str) -> Iterator[None]:
    """A marker adapter under another name, for the block, as a folder dropped into the root."""

    def served() -> bool:
        try:
            return bool(ask(client, "grpc lora_infer", name).text)
        except Refused:
            return False

    shutil.copytree(root / marker, root / name)
    wait_until(served, 20.0)
    try:
        yield
    finally:
        shutil.rmtree(root / name)


def test_a_part_changes_and_goes(server: Server, client: Client) -> None:
    root, name = server.demo / "adapters", "mark_part_v1"
    mixed = f"{name}*0.9+{TWO}*0.1"
    mark = server.log_mark()
    with copied(client, root, ONE, name):
        first = ask(client, "grpc lora_infer", mixed)
        assert first.text.split() == [server.markers[ONE]] * 4
        other = list(server.markers)[4]
        for file in (root / other).iterdir():
            shutil.copyfile(file, root / name / file.name)
        wait_until(lambda: ask(client, "grpc lora_infer", mixed).served != first.served, 20.0)
        second = ask(client, "grpc lora_infer", mixed)
        assert second.text.split() == [server.markers[other]] * 4
        # The one made of the old part leaves by itself.
        server.wait_for_log(f"mixture {first.served} is retired", mark)

    def refused() -> bool:
        try:
            ask(client, "grpc lora_infer", mixed)
        except Refused as error:
            return error.code == "not_found"
        return False

    wait_until(refused, 20.0)
    server.wait_for_log(f"mixture {second.served} is retired", mark)


def each_says_its_word(client: Client, requests: list[Any], expected: dict[str, str]) -> None:
    """All at once, on four streams: by request id, the word that is to be said twice."""
    with ThreadPoolExecutor(4) as pool:
        parts = [requests[i::4] for i in range(4)]
        streams = {k: v for found in pool.map(client.streams_grpc, parts) for k, v in found.items()}
    wrong = {
        uid: (stream.text, stream.error)
        for uid, stream in streams.items()
        if stream.error or stream.finals != 1 or stream.text.split() != [expected[uid]] * 2
    }
    assert len(streams) == len(requests) and wrong == {}


@pytest.mark.parametrize("count", [1, 8, 64, 256])
def test_many_at_once(server: Server, client: Client, count: int) -> None:
    """Up to twice Triton's BLS threads, and far more than the engine's seats."""
    words = {0.9: server.markers[ONE], 0.1: server.markers[TWO]}
    requests, expected = [], {}
    for number in range(count):
        weight = (0.9, 0.1)[number % 2]
        uid = str(number)
        expected[uid] = words[weight]
        fields = {
            "text_input": SEA,
            "lora_id": f"{ONE}*{weight}+{TWO}*{round(1 - weight, 1)}",
            "credential": server.keys["admin"],
            "sampling_parameters": sampling(max_tokens=2),
            "stream": True,
        }
        requests.append(grpc_request("adapter_fusion", fields, request_id=uid))
    each_says_its_word(client, requests, expected)


def test_a_cancel_reaches_the_engine(server: Server, client: Client) -> None:
    request = long_request(server, "adapter_fusion", lora_id=f"{ONE}*0.9+{TWO}*0.1", stream=True)
    mark = server.log_mark()
    call = client.stub.ModelStreamInfer(iter([request]), timeout=60)
    assert not next(call).error_message
    call.cancel()
    server.wait_for_log(GONE, mark, 1, BOUND_S)


def test_it_is_counted_and_audited(server: Server, client: Client) -> None:
    reply = ask(client, "stream adapter_fusion", f"{ONE}*0.8+{TWO}*0.2")
    metrics = server.metrics_text()
    counted = [line for line in metrics.splitlines() if line.startswith("lora_fusions_total")]
    assert any('mode="weights"' in line and 'outcome="ok"' in line for line in counted)
    assert "lora_fusion_build_seconds_count" in metrics
    lines = lines_of(server, uid=reply.uid)
    by_event = {line["event"]: line for line in lines}
    assert by_event["decision"]["resolved"] == f"{ONE}*0.8+{TWO}*0.2"
    assert len(by_event["decision"]["digests"]) == 2
    assert by_event["completion"]["served"] == reply.served
