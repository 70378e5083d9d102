"""The additional outputs of Triton's official vLLM backend: there when asked for, else absent."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from python_backend.messages import RETURN_SWITCHES
from tests.server.client import Client
from tests.server.shapes import Reply, sampling

PROMPT = "The capital of France is"
PROMPT_TOKENS = 5
SWITCHES = tuple(RETURN_SWITCHES)
ALWAYS = {"text_output", "lora_served", "request_uid"}

COMBINATIONS = [
    pytest.param(dict(zip(SWITCHES, on, strict=True)), id="".join("01"[v] for v in on))
    for on in itertools.product([False, True], repeat=len(SWITCHES))
]


def check_outputs(reply: Reply, asked: dict[str, bool], expected: dict[str, Any]) -> None:
    wanted = {RETURN_SWITCHES[switch] for switch, on in asked.items() if on}
    assert set(reply.outputs) == wanted | ALWAYS
    for name in wanted - {"logprobs"}:
        assert reply.outputs[name] == expected[name], name
    if "logprobs" in wanted:
        (found,) = reply.outputs["logprobs"]
        positions = json.loads(found)
        tokens = [token["decoded_token"] for position in positions for token in position.values()]
        ranks = [token["rank"] for position in positions for token in position.values()]
        assert (tokens, ranks) == (expected["tokens"], [1] * len(tokens))


@pytest.mark.parametrize("asked", COMBINATIONS)
def test_outputs_asked_for_and_no_others(client: Client, asked: dict[str, bool]) -> None:
    reply = client.infer_grpc(
        text_input=PROMPT, sampling_parameters=sampling(logprobs=0, max_tokens=2), **asked
    )
    expected = {
        "finish_reason": ["length"],
        "cumulative_logprob": [pytest.approx(-0.658, abs=0.1)],
        "num_input_tokens": [PROMPT_TOKENS],
        "num_output_tokens": [2],
        "tokens": [" Paris", "."],
    }
    check_outputs(reply, asked, expected)


@pytest.mark.parametrize("asked", COMBINATIONS)
def test_outputs_asked_for_and_no_others_streamed(client: Client, asked: dict[str, bool]) -> None:
    stream = client.stream_grpc(
        "lora_stream",
        text_input=PROMPT,
        sampling_parameters=sampling(logprobs=0, max_tokens=2),
        **asked,
    )
    assert len(stream.replies) == 2
    steps = [(" Paris", "None", -0.269), (".", "length", -0.658)]
    for reply, (token, reason, logprob) in zip(stream.replies, steps, strict=True):
        expected = {
            "finish_reason": [reason],
            "cumulative_logprob": [pytest.approx(logprob, abs=0.1)],
            "num_input_tokens": [PROMPT_TOKENS],
            "num_output_tokens": [1],
            "tokens": [token],
        }
        check_outputs(reply, asked, expected)


def test_logprobs_are_null_where_sampling_asks_for_none(client: Client) -> None:
    reply = client.infer_grpc(
        text_input=PROMPT, sampling_parameters=sampling(max_tokens=1), return_logprobs=True
    )
    assert reply.outputs["logprobs"] == ["null"]


def test_logprobs_hold_the_alternatives(client: Client) -> None:
    reply = client.infer_grpc(
        text_input=PROMPT,
        sampling_parameters=sampling(max_tokens=1, logprobs=2),
        return_logprobs=True,
    )
    ((position,),) = (json.loads(text) for text in reply.outputs["logprobs"])
    assert sorted(token["rank"] for token in position.values()) == [1, 2]
    assert all(set(t) == {"logprob", "rank", "decoded_token"} for t in position.values())
    assert all(token_id.isdigit() for token_id in position)
