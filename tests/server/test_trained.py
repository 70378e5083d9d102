"""The trained demo adapters answer in the form they were taught, through every door."""

from __future__ import annotations

import json

import pytest

from tests.server.client import DOORS, Client
from tests.server.harness import Server
from tests.server.shapes import expect_error, sampling
from tools.demo import examples

WHO = {"fin_risk_v1": "fin", "svc_chat_v1": "svc", "qa_testgen_v1": "qa"}
TURNS = [(door, examples.ADAPTERS[i % 3], i // 3) for i, door in enumerate(DOORS)]


def chat(prompt: str) -> str:
    return json.dumps([{"role": "user", "content": prompt}])


@pytest.mark.parametrize("door, lora_id, number", TURNS, ids=[turn[0] for turn in TURNS])
def test_a_chat_with_a_departments_adapter(
    server: Server, client: Client, door: str, lora_id: str, number: int
) -> None:
    reply = client.answer(
        door,
        messages=chat(examples.held_out(lora_id)[number]),
        lora_id=lora_id,
        credential=server.keys[WHO[lora_id]],
        sampling_parameters=sampling(max_tokens=90),
    )
    assert examples.FORMATS[lora_id].fullmatch(reply.text), reply.text
    assert reply.served.startswith(f"{lora_id}@")


def test_a_chat_never_begins_with_its_prompt(client: Client) -> None:
    reply = client.generate(
        "lora_generate",
        messages=chat(examples.held_out("qa_testgen_v1")[0]),
        lora_id="qa_testgen_v1",
        exclude_input_in_output=False,
        sampling_parameters=sampling(max_tokens=4),
    )
    assert reply.text.startswith("TC1:")


def test_an_alias_stands_for_its_adapter(server: Server, client: Client) -> None:
    reply = client.infer_grpc(text_input="Hi", lora_id="fin_risk", credential=server.keys["fin"])
    assert reply.served.startswith("fin_risk_v1@")


@pytest.mark.parametrize("who, lora_id", [("svc", "fin_risk_v1"), ("fin", "qa_testgen_v1")])
def test_another_departments_adapter_does_not_exist(
    server: Server, client: Client, who: str, lora_id: str
) -> None:
    with expect_error("not_found"):
        client.infer_grpc(text_input="Hi", lora_id=lora_id, credential=server.keys[who])
