"""Characters of several bytes are never broken across the responses of a stream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.client import Client
from tests.server.shapes import sampling

BROKEN = "\N{REPLACEMENT CHARACTER}"
TEXTS = ("你好，世界 🌍", "Привет, мир", "한국어 문장", "👩‍👩‍👧 é ﷽", "🎉🎊🥳")


def forced(text: str, **fields: Any) -> str:
    """Sampling that leaves the model one answer: ``text``, token by token."""
    return sampling(structured_outputs={"choice": [text]}, **{"max_tokens": 64, **fields})


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("model", ["lora_generate", "lora_stream"])
def test_joined_deltas_are_the_text(client: Client, model: str, text: str) -> None:
    fields: dict[str, Any] = {"text_input": "Say it: ", "sampling_parameters": forced(text)}
    grpc = client.stream_grpc(model, **fields)
    deltas = [reply.text for reply in grpc.replies]
    assert "".join(deltas) == text
    assert not any(BROKEN in delta for delta in deltas)
    assert client.generate_stream(model, **fields).text == text
    whole = client.generate(model, exclude_input_in_output=True, **fields)
    assert whole.text == text


def test_a_text_cut_within_a_character(client: Client) -> None:
    """Whatever the length, a stream says what the whole answer says."""
    text = "🌍🌍🌍"
    for most in range(1, 9):
        fields: dict[str, Any] = {
            "text_input": "Say it: ",
            "sampling_parameters": forced(text, max_tokens=most),
        }
        streamed = client.stream_grpc("lora_stream", **fields).text
        whole = client.infer_grpc(exclude_input_in_output=True, **fields).text
        assert streamed == whole
        assert text.startswith(whole.rstrip(BROKEN))
        assert BROKEN not in whole.rstrip(BROKEN)


@pytest.mark.parametrize("prompt", ["Привет", "日本語 🌸", "e\u0301 and \u00e9", "a\u200bb\ufeffc"])
def test_prompts_come_back_as_they_were(client: Client, prompt: str) -> None:
    reply = client.infer_grpc(text_input=prompt, sampling_parameters=sampling(max_tokens=1))
    assert reply.text.startswith(prompt)
