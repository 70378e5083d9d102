"""Whatever is wrong with a request: its code, no secret in the message, and nobody else hurt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Call, Refused, Reply, expect_error, sampling

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]

#: The prompt of the longest kind: one token has to be left for the answer.
LIMIT = 1023

BAD_NAMES = [
    "none",
    "default",
    "all",
    "",
    " ",
    "MARK_W0001_V1",
    "mark_w0001_v1 ",
    "mark_w0001_v1\n",
    "a" * 5000,
    "mаrk_w0001_v1",  # with a Cyrillic letter
    "../mark_w0001_v1",
    "/etc/passwd",
    "mark_w0001",
    "ＭＡＲＫ",
    "mark_w0001_v1@0123456789ab",
    "mark_w0001_v1*0.5+mark_w0002_v1",
    '\n{"event":"allow"}',
]
BAD_MESSAGES = [
    "",
    "{}",
    "[]",
    "null",
    "[1]",
    "not json",
    '[{"role": "user"}]',
    '[{"content": "a"}]',
    '[{"role": "robot", "content": "a"}]',
    '[{"role": "user", "content": 1}]',
    '[{"role": "user", "content": "a", "x": 1}]',
    '[{"role": "user", "content": NaN}]',
    '[{"role": "user", "role": "user", "content": "a"}]',
    "[" * 5000,
]


class TestWhoCalls:
    @pytest.mark.parametrize(
        "credential",
        [None, "", "wrong", "x" * 5000, "ключ", b"\xff\xfe", "a\x00b"],
        ids=["none", "empty", "wrong", "long", "cyrillic", "not-utf8", "nul"],
    )
    def test_no_or_wrong_key(
        self, server: Server, call: Call, request: pytest.FixtureRequest, credential: Any
    ) -> None:
        if isinstance(credential, bytes) and "[generate" in request.node.name:
            pytest.skip("JSON cannot carry it")
        with expect_error("unauthenticated") as caught:
            call(text_input="Hi", credential=credential)
        server.gives_nothing_away(caught.value)
        assert caught.value.sentence == "a valid API key is needed."

    def test_a_key_that_differs_in_its_last_byte(self, server: Server, call: Call) -> None:
        key = server.keys["admin"]
        with expect_error("unauthenticated"):
            call(text_input="Hi", credential=key[:-1] + ("A" if key[-1] != "A" else "B"))

    def test_someone_elses_adapter_is_unknown(self, server: Server, call: Call) -> None:
        messages = set()
        for lora_id in ("mark_w0001_v1", "mark_w0999_v1", "svc_chat_v1", "svc_nothing_v9"):
            with expect_error("not_found") as caught:
                call(text_input="Hi", lora_id=lora_id, credential=server.keys["fin"])
            server.gives_nothing_away(caught.value)
            messages.add((caught.value.message, caught.value.status))
        assert len(messages) == 1

    def test_an_operators_unknown_adapter(self, call: Call) -> None:
        with expect_error("not_found"):
            call(text_input="Hi", lora_id="fin_nothing_v1")


@pytest.mark.parametrize(
    "name",
    BAD_NAMES,
    ids=lambda name: ascii(name[:20]),
)
def test_reserved_and_malformed_names(server: Server, call: Call, name: str) -> None:
    with expect_error("invalid_argument", "lora_id: ") as caught:
        call(text_input="Hi", lora_id=name)
    server.gives_nothing_away(caught.value)
    assert len(name.strip()) < 5 or name not in caught.value.message


class TestThePrompt:
    def test_both_or_neither(self, call: Call) -> None:
        both: dict[str, Any] = {
            "text_input": "Hi",
            "messages": '[{"role": "user", "content": "Hi"}]',
        }
        for fields in (both, {}):
            with expect_error("invalid_argument", "exactly one of text_input and messages"):
                call(**fields)

    @pytest.mark.parametrize("adapter", [{}, {"lora_id": "mark_w0002_v1"}], ids=["base", "marker"])
    def test_empty(self, call: Call, adapter: dict[str, str]) -> None:
        with expect_error("invalid_argument", "text_input: "):
            call(text_input="", **adapter)

    @pytest.mark.parametrize("adapter", [{}, {"lora_id": "mark_w0002_v1"}], ids=["base", "marker"])
    @pytest.mark.parametrize("prompt", [" ", "\u200b", "a\0b", "\0", "\u2028", "\x1b[31m"])
    def test_odd_but_not_empty(self, call: Call, prompt: str, adapter: dict[str, str]) -> None:
        answer = call(text_input=prompt, sampling_parameters=sampling(max_tokens=1), **adapter)
        reply = answer if isinstance(answer, Reply) else answer.replies[-1]
        assert reply.text.startswith(prompt)
        if adapter:
            assert reply.text == prompt + " delta"

    def test_lengths_around_the_limit(self, call: Call) -> None:
        given = sampling(max_tokens=1)
        for tokens in (LIMIT - 1, LIMIT):
            # "a a a …": a token a word.
            answer = call(
                text_input=" ".join("a" * tokens),
                sampling_parameters=given,
                return_num_input_tokens=True,
                return_num_output_tokens=True,
            )
            reply = answer if isinstance(answer, Reply) else answer.replies[-1]
            assert reply.outputs["num_input_tokens"] == [tokens]
            assert reply.outputs["num_output_tokens"] == [1]
        with expect_error("invalid_argument", f"has {LIMIT + 1} tokens") as caught:
            call(text_input=" ".join("a" * (LIMIT + 1)), sampling_parameters=given)
        assert str(LIMIT) in caught.value.sentence

    def test_an_answer_ends_at_the_models_length(self, call: Call) -> None:
        """Prompt and answer together: what does not fit is not generated."""
        answer = call(
            text_input=" ".join("a" * (LIMIT - 1)),
            sampling_parameters=sampling(max_tokens=5, ignore_eos=True),
            return_num_output_tokens=True,
            return_finish_reason=True,
        )
        reply = answer if isinstance(answer, Reply) else answer.replies[-1]
        assert reply.outputs["num_output_tokens"] == [2]
        assert reply.outputs["finish_reason"] == ["length"]

    def test_a_million_characters(self, call: Call) -> None:
        with expect_error("invalid_argument", "text_input: "):
            call(text_input="a b " * 300_000)

    def test_not_utf8(self, client: Client) -> None:
        for field in ("text_input", "messages", "sampling_parameters", "lora_id"):
            fields: dict[str, Any] = {"text_input": "Hi"} if field != "messages" else {}
            fields[field] = b'"\xff\xfe"'
            for way in (client.infer_grpc, client.infer_http):
                with expect_error("invalid_argument", f"{field}: "):
                    way(**fields)

    @pytest.mark.parametrize("field", ["text_input", "lora_id", "credential", "stream"])
    def test_not_one_element(self, server: Server, client: Client, field: str) -> None:
        """Triton compares shapes itself; what it lets through we refuse."""
        two: Any = [True, True] if field == "stream" else ["a", "b"]
        for way in (client.infer_grpc, client.infer_http):
            with pytest.raises(Refused) as caught:
                way(**{"text_input": "Hi", field: two})
            assert caught.value.code in ("", "invalid_argument")
            assert field in caught.value.sentence

    @pytest.mark.parametrize(
        "messages",
        BAD_MESSAGES,
    )
    def test_messages(self, server: Server, call: Call, messages: str) -> None:
        with expect_error("invalid_argument", "messages") as caught:
            call(messages=messages)
        server.gives_nothing_away(caught.value)


def test_stream_on_the_unary_door(client: Client) -> None:
    for way in (client.infer_http, client.infer_grpc):
        with expect_error("invalid_argument", "stream: "):
            way(text_input="Hi", stream=True)


def test_the_error_names_no_header(server: Server, client: Client) -> None:
    """A key in the wrong place is not repeated."""
    secret = server.keys["fin"]
    wrong: list[dict[str, Any]] = [
        {"lora_id": secret},
        {"sampling_parameters": json.dumps({"temperature": secret})},
        {"parameters": {"timeout_ms": secret}},
        {"messages": secret, "text_input": None},
    ]
    for fields in wrong:
        with expect_error("invalid_argument") as caught:
            client.infer_grpc(**{"text_input": "Hi", **fields})
        server.gives_nothing_away(caught.value)
