"""Every sampling parameter: of a wrong type, out of range, unknown, in the wrong place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Call, Refused, expect_error, sampling

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]

BAD_SAMPLING: list[tuple[str, Any]] = [
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1025),
    ("max_tokens", 10**30),
    ("max_tokens", True),
    ("max_tokens", "many"),
    ("max_tokens", 2.5),
    ("max_tokens", [1]),
    ("max_tokens", None),
    ("min_tokens", 5),
    ("n", 0),
    ("n", 9),
    ("n", 2),
    ("temperature", -0.1),
    ("temperature", 1e9),
    ("temperature", "hot"),
    ("temperature", True),
    ("temperature", {}),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("min_p", 2),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("seed", "x"),
    ("seed", 2**70),
    ("stop", 1),
    ("stop", [""]),
    ("stop", [1]),
    ("stop", ["a"] * 17),
    ("stop_token_ids", "a"),
    ("stop_token_ids", [-1]),
    ("bad_words", "a"),
    ("ignore_eos", 1),
    ("skip_special_tokens", "yes"),
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", -2),
    ("logit_bias", [1]),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"1": 101}),
    ("allowed_token_ids", []),
    ("structured_outputs", {}),
    ("structured_outputs", {"choice": []}),
    ("structured_outputs", {"choice": ["a"], "regex": "a"}),
    ("structured_outputs", {"unknown": 1}),
    ("best_of", 2),
    ("prompt_logprobs", 1),
    ("lora_path", "/etc"),
    ("extra_args", {}),
]


@pytest.mark.parametrize(
    "name, value", BAD_SAMPLING, ids=[f"{n}={str(v)[:20]}" for n, v in BAD_SAMPLING]
)
@pytest.mark.parametrize("model", ["lora_generate", "lora_infer"])
def test_sampling_parameters(
    server: Server, client: Client, model: str, name: str, value: Any
) -> None:
    given = sampling(**{name: value})
    way = client.generate if model == "lora_generate" else client.infer_grpc
    with expect_error("invalid_argument", name) as caught:
        way(model, text_input="Hi", sampling_parameters=given)
    server.gives_nothing_away(caught.value)


@pytest.mark.parametrize(
    "text, mentions",
    [
        ('{"temperature": NaN}', "NaN"),
        ('{"temperature": Infinity}', "NaN"),
        ('{"temperature": 1e999}', "NaN"),
        ('{"temperature": 0, "temperature": 1}', "twice"),
        ("[]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"a":' * 5000, "sampling_parameters"),
        ('{"stop": "\\ud800"}', "surrogate"),
        ('{"lora_name": 7}', "lora_name"),
    ],
)
def test_sampling_json(call: Call, text: str, mentions: str) -> None:
    with expect_error("invalid_argument", mentions):
        call(text_input="Hi", sampling_parameters=text)


@pytest.mark.parametrize(
    "sampling_json",
    [
        {"structured_outputs": {"regex": "("}},
        {"structured_outputs": {"grammar": "this is no grammar"}},
        {"structured_outputs": {"json": {"type": "no such type"}}},
        {"allowed_token_ids": [2**31 - 1]},
        {"logit_bias": {"2000000000": 1}},
        {"stop_token_ids": [2**31 - 1]},
    ],
    ids=str,
)
def test_what_only_the_engine_can_refuse(
    server: Server, call: Call, sampling_json: dict[str, Any]
) -> None:
    """Refused, or harmless: never an error of ours, never the end of the engine."""
    try:
        call(text_input="Hi", sampling_parameters=sampling(max_tokens=1, **sampling_json))
    except Refused as refused:
        assert refused.code == "invalid_argument", refused.message
        server.gives_nothing_away(refused)
    else:
        assert "stop_token_ids" in sampling_json


class TestTypesOfParameters:
    """C39: what /generate takes as request parameters; lists travel in the sampling JSON."""

    @pytest.mark.parametrize("nested", [True, False])
    def test_taken(self, client: Client, nested: bool) -> None:
        def tokens(**given: Any) -> int:
            given = {"ignore_eos": True, **given}
            fields: dict[str, Any] = {"parameters": given} if nested else given
            reply = client.generate(
                "lora_generate", text_input="Hi", return_num_output_tokens=True, **fields
            )
            return int(reply.outputs["num_output_tokens"][0])

        assert tokens(max_tokens=3, temperature="0.1") == 3
        assert tokens(max_tokens="3", temperature=0.1) == 3
        assert tokens(max_tokens=3.0, top_p="1") == 3
        assert tokens(max_tokens=3, ignore_eos="true", stop="no such thing") == 3

    @pytest.mark.parametrize(
        "given",
        [
            {"max_tokens": True},
            {"max_tokens": 2.5},
            {"max_tokens": "2.5"},
            {"temperature": "nan"},
            {"ignore_eos": "yes"},
            {"ignore_eos": 1},
            {"timeout_ms": 0},
            {"timeout_ms": "soon"},
            {"no_such_parameter": 1},
        ],
        ids=str,
    )
    def test_refused_by_us(self, call: Call, given: dict[str, Any]) -> None:
        with expect_error("invalid_argument", next(iter(given))):
            call(text_input="Hi", parameters=given)

    @pytest.mark.parametrize(
        "given",
        [{"stop": ["a"]}, {"stop_token_ids": [1]}, {"logit_bias": {"1": 1}}, {"max_tokens": [1]}],
        ids=str,
    )
    @pytest.mark.parametrize("nested", [True, False])
    def test_refused_by_triton(self, client: Client, given: dict[str, Any], nested: bool) -> None:
        fields: dict[str, Any] = {"parameters": given} if nested else given
        with expect_error("", next(iter(given))):
            client.generate("lora_generate", text_input="Hi", **fields)

    @pytest.mark.parametrize(
        "fields",
        [{"lora_id": 7}, {"lora_id": {"a": 1}}, {"stream": "false"}, {"stream": 1}],
        ids=str,
    )
    def test_inputs_of_another_type(self, client: Client, fields: dict[str, Any]) -> None:
        for model in ("lora_generate", "lora_stream"):
            with expect_error(""):
                client.generate(model, text_input="Hi", **fields)

    def test_one_adapter_in_a_list(self, client: Client) -> None:
        reply = client.generate("lora_generate", text_input="Hi", lora_id=["mark_w0001_v1"])
        assert reply.served.startswith("mark_w0001_v1@")
