"""Modes ``auto`` and ``distribution`` on the real server."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.server.client import Client
from tests.server.harness import ROOT, Server
from tests.server.shapes import Reply, expect_error, grpc_request, sampling
from tests.server.test_cancel import BOUND_S, GONE, long_request
from tests.server.test_fusion import SEA, each_says_its_word

MARKERS = tuple(f"mark_w000{number}_v1" for number in range(1, 5))
ONE, TWO = MARKERS[:2]
BOTH = "Rate the risk of this loan and write test cases for the loan form."
PARCEL, POEM = "My parcel has not arrived.", "Write a poem about the sea."


def ask(client: Client, prompt: str, mode: str, door: str = "stream", **fields: Any) -> Reply:
    fusion = {"mode": mode, **fields.pop("fusion", {})}
    fields = {"sampling_parameters": sampling(), "fusion": json.dumps(fusion), **fields}
    return client.answer(f"{door} adapter_fusion", text_input=prompt, **fields)


def mixed(client: Client, weights: dict[str, float], **fields: Any) -> Reply:
    return ask(client, SEA, "distribution", fusion={"weights": weights}, **fields)


def account(reply: Reply) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reply.outputs["fusion_served"][0])
    return found


def test_auto_mixes_where_a_prompt_is_for_two(client: Client) -> None:
    reply = ask(client, BOTH, "auto")
    said = account(reply)
    assert said["mode"] == "auto"
    assert said["weights"].keys() == {"fin_risk_v1", "qa_testgen_v1"}
    assert all(0.1 <= weight <= 0.9 for weight in said["weights"].values())
    assert math.fsum(said["weights"].values()) + said["base"] == pytest.approx(1.0)
    assert reply.served.startswith(f"{said['expression']}@")
    # What ran is what the same weights are, given by hand.
    by_hand = client.answer(
        "grpc lora_infer", text_input=BOTH, lora_id=said["expression"],
        sampling_parameters=sampling(),
    )  # fmt: skip
    assert (by_hand.text, by_hand.served) == (reply.text, reply.served)


def test_auto_does_not_mix_where_one_is_enough(client: Client) -> None:
    alone = ask(client, PARCEL, "auto")
    assert alone.served.startswith("svc_chat_v1@")
    assert account(alone)["weights"] == {"svc_chat_v1": 1.0}
    assert ask(client, POEM, "auto").served == "base"
    # Of the words of others a candidate that is named makes nothing.
    risk = ask(client, POEM, "auto", fusion={"candidates": ["fin_risk"]})
    assert account(risk)["weights"].keys() <= {"fin_risk_v1"}


def test_the_readme_shows_these_prompts() -> None:
    readme = " ".join(Path(ROOT / "README.md").read_text("utf-8").split())
    assert all(f'"{prompt}"' in readme for prompt in (BOTH, PARCEL, POEM))


@pytest.mark.usefixtures("still_healthy")
def test_auto_refused(server: Server, client: Client) -> None:
    with expect_error("not_found") as caught:
        ask(client, PARCEL, "auto", credential=server.keys["svc"])
    server.gives_nothing_away(caught.value)
    with expect_error("not_found"):
        ask(client, PARCEL, "auto", fusion={"candidates": ["fin_nobody_v1"]})
    with expect_error("invalid_argument", "does not know all of them"):
        ask(client, PARCEL, "auto", fusion={"candidates": [ONE]})
    with expect_error("invalid_argument", "lora_id: mode auto chooses"):
        ask(client, PARCEL, "auto", lora_id=ONE)


@pytest.mark.parametrize("door", ["stream", "generate", "sse"])
def test_distributions_trade_places_with_the_weights(
    server: Server, client: Client, door: str
) -> None:
    for one, two, word in ((0.8, 0.2, ONE), (0.2, 0.7, TWO)):
        reply = mixed(client, {ONE: one, TWO: two}, door=door)
        assert reply.text.split() == [server.markers[word]] * 4
        assert reply.served.startswith(f"{ONE}*{one}+{TWO}*{two}@")
        said = account(reply)
        assert (said["mode"], said["weights"]) == ("distribution", {ONE: one, TWO: two})
        assert said["base"] == pytest.approx(1.0 - one - two)


def chances(reply: Reply) -> dict[str, float]:
    first = json.loads(reply.outputs["logprobs"][0])[0]
    return {token: math.exp(entry["logprob"]) for token, entry in first.items()}


def test_mixed_chances_are_the_parts_own_times_their_weights(client: Client) -> None:
    asked = {"sampling_parameters": sampling(max_tokens=1, logprobs=20), "return_logprobs": True}
    weights = {ONE: 0.5, TWO: 0.3, "base": 0.2}
    parts = {
        name: chances(client.answer("grpc lora_infer", text_input=SEA, lora_id=name, **asked))
        for name in weights
    }
    found = chances(mixed(client, {ONE: 0.5, TWO: 0.3}, **asked))
    both = list(found)[:2]
    for token in both:
        by_hand = sum(weight * parts[name].get(token, 0.0) for name, weight in weights.items())
        assert found[token] == pytest.approx(by_hand, abs=1e-3)
    assert found[both[0]] > found[both[1]] > 0.25


def test_sampling_is_of_the_mixture(server: Server, client: Client) -> None:
    def words(**fields: Any) -> list[str]:
        given = sampling(temperature=1, max_tokens=24, ignore_eos=True, **fields)
        return mixed(client, {ONE: 0.5, TWO: 0.5}, sampling_parameters=given).text.split()

    drawn = words(seed=7, top_k=2)
    one, two = server.markers[ONE], server.markers[TWO]
    assert set(drawn) == {one, two}
    assert words(seed=7, top_k=2) == drawn
    assert set(words(seed=7, top_p=0.01)) in ({one}, {two})
    assert one not in words(seed=7, top_k=2, stop=[one])


@pytest.mark.usefixtures("still_healthy")
@pytest.mark.parametrize(
    ("weights", "more", "mentions"),
    [
        ({name: 0.25 for name in MARKERS}, {}, "at most 3 parts"),
        ({name: 0.3 for name in MARKERS[:3]}, {}, "at most 3 parts"),
        ({ONE: 1.2}, {}, "shares"),
        ({ONE: 1.2, TWO: -0.2}, {}, "shares"),
        ({ONE: 0.5}, {"n": 2, "temperature": 1}, "n: "),
        ({ONE: 0.5}, {"presence_penalty": 1}, "presence_penalty: "),
        ({ONE: 0.5}, {"max_tokens": 257}, "max_tokens: "),
    ],
)
def test_what_distribution_does_not_do(
    client: Client, weights: dict[str, float], more: dict[str, Any], mentions: str
) -> None:
    with expect_error("invalid_argument", mentions):
        mixed(client, weights, sampling_parameters=sampling(**more))


def test_crossing_parts_beside_ordinary_requests(server: Server, client: Client) -> None:
    """More parts than slots, in every order, while others use the slots, too."""
    requests, expected = [], {}
    for number in range(64):
        uid, heavy = str(number), MARKERS[number % 4]
        light = MARKERS[(number + 1 + number // 4 % 3) % 4]
        expected[uid] = server.markers[heavy]
        fields: dict[str, Any] = {
            "text_input": SEA,
            "credential": server.keys["admin"],
            "sampling_parameters": sampling(max_tokens=2),
            "stream": True,
        }
        if number % 2:
            fields["lora_id"] = heavy
        else:
            wish = {"mode": "distribution", "weights": {heavy: 0.7, light: 0.3}}
            fields["fusion"] = json.dumps(wish)
        requests.append(grpc_request("adapter_fusion", fields, request_id=uid))
    each_says_its_word(client, requests, expected)


def test_a_cancel_ends_every_part(server: Server, client: Client) -> None:
    request = long_request(
        server,
        "adapter_fusion",
        sampling_parameters=sampling(max_tokens=256, ignore_eos=True),
        fusion=json.dumps({"mode": "distribution", "weights": {ONE: 0.6, TWO: 0.4}}),
        stream=True,
    )
    mark = server.log_mark()
    call = client.stub.ModelStreamInfer(iter([request]), timeout=60)
    assert not next(call).error_message
    call.cancel()
    server.wait_for_log(GONE, mark, 1, BOUND_S)
    # Its places are free again: as many can be asked for at once.
    assert mixed(client, {ONE: 0.6, TWO: 0.4}).text.split() == [server.markers[ONE]] * 4
