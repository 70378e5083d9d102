from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble.sampling import TABLE, canonical
from python_backend.errors import InvalidArgument
from python_backend.messages import EngineRequest
from python_backend.settings import LimitSettings

LIMITS = LimitSettings(max_tokens=256, n=4, logprobs=5)
INF = float("inf")
NAN = float("nan")


def one(name: str, value: Any) -> Any:
    return canonical({name: value, "max_tokens": 200} | {name: value}, LIMITS)[name]


def refusal(sampling: dict[str, Any]) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as error:
        canonical(sampling, LIMITS)
    return error.value


ACCEPTED = [
    ("n", 2, 2),
    ("n", "2", 2),
    ("n", 4, 4),
    ("presence_penalty", -2, -2.0),
    ("frequency_penalty", "2.0", 2.0),
    ("repetition_penalty", 5, 5.0),
    ("temperature", 0, 0.0),
    ("temperature", "0", 0.0),
    ("temperature", "0.1", 0.1),
    ("temperature", "1e-1", 0.1),
    ("temperature", 2, 2.0),
    ("top_p", 1, 1.0),
    ("top_p", ".5", 0.5),
    ("top_k", -1, -1),
    ("top_k", 0, 0),
    ("top_k", "50", 50),
    ("min_p", 0, 0.0),
    ("seed", 2**63 - 1, 2**63 - 1),
    ("seed", -(2**63), -(2**63)),
    ("seed", "-1", -1),
    ("stop", "END", ["END"]),
    ("stop", ["a", "é"], ["a", "é"]),
    ("stop", [], []),
    ("stop_token_ids", [0, "2", 3.0], [0, 2, 3]),
    ("bad_words", ["x"], ["x"]),
    ("include_stop_str_in_output", "true", True),
    ("include_stop_str_in_output", "false", False),
    ("ignore_eos", True, True),
    ("ignore_eos", False, False),
    ("max_tokens", 64.0, 64),
    ("max_tokens", "64", 64),
    ("max_tokens", 256, 256),
    ("min_tokens", 200, 200),
    ("logprobs", 0, 0),
    ("logprobs", 5, 5),
    ("skip_special_tokens", "false", False),
    ("spaces_between_special_tokens", True, True),
    ("logit_bias", {"7": 1, "8": -100}, {"7": 1.0, "8": -100.0}),
    ("allowed_token_ids", [1, 2], [1, 2]),
    ("structured_outputs", {"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
    ("structured_outputs", '{"regex": "[0-9]+"}', {"regex": "[0-9]+"}),
    ("structured_outputs", {"regex": ""}, {"regex": ""}),
    ("structured_outputs", {"grammar": "root ::= x", "json": None}, {"grammar": "root ::= x"}),
    ("structured_outputs", {"json_object": "true"}, {"json_object": True}),
    ("structured_outputs", {"structural_tag": {"a": 1}}, {"structural_tag": '{"a": 1}'}),
]


@pytest.mark.parametrize(("name", "value", "expected"), ACCEPTED)
def test_accepted(name: str, value: Any, expected: Any) -> None:
    got = one(name, value)
    assert got == expected
    assert type(got) is type(expected)


def test_the_table_is_tested_whole() -> None:
    assert {name for name, _, _ in ACCEPTED} == set(TABLE)


INTEGERS = ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs"]
NUMBERS = [
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "min_p",
]
BOOLEANS = [
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
]
LISTS = ["stop", "stop_token_ids", "bad_words", "allowed_token_ids"]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "value",
    [True, False, "true", "", " 1", "1_0", "１", "0x1", 1.5, "1.5", NAN, INF, "nan", [1], {}],
)
def test_not_an_integer(name: str, value: Any) -> None:
    assert refusal({name: value}).message == f"invalid_argument: {name}: must be an integer."


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, False, "true", "", "nan", "NaN", "inf", "1_0", None, [1]])
def test_not_a_number(name: str, value: Any) -> None:
    assert refusal({name: value}).message == f"invalid_argument: {name}: must be a number."


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, 10**400, "1e999"])
def test_not_finite(name: str, value: Any) -> None:
    assert refusal({name: value}).message == f"invalid_argument: {name}: must be a finite number."


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", [0, 1, "True", "yes", "", "1", None, 1.0, []])
def test_not_a_boolean(name: str, value: Any) -> None:
    assert refusal({name: value}).message == f"invalid_argument: {name}: must be true or false."


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("value", [7, True, {"a": 1}, 1.5])
def test_not_a_list(name: str, value: Any) -> None:
    assert refusal({name: value}).message.startswith(f"invalid_argument: {name}: must be a list of")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", -1),
        ("n", 2**70),
        ("presence_penalty", 2.01),
        ("presence_penalty", -2.01),
        ("frequency_penalty", 3),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("max_tokens", 0),
        ("max_tokens", None),
        ("min_tokens", -1),
        ("logprobs", -2),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["x" * 257]),
        ("stop", ["x"] * 17),
        ("stop", [1]),
        ("stop", ["\ud800"]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [2**31]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [1] * 129),
        ("stop_token_ids", "1,2"),
        ("bad_words", [""]),
        ("bad_words", "x"),
        ("allowed_token_ids", []),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 100.5}),
        ("logit_bias", {"1": NAN}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": 1, "01": 2}),
        ("logit_bias", [[1, 2]]),
        ("structured_outputs", {}),
        ("structured_outputs", []),
        ("structured_outputs", "["),
        ("structured_outputs", {"choice": ["a"], "regex": "b"}),
        ("structured_outputs", {"_backend": "xgrammar"}),
        ("structured_outputs", {"choice": []}),
        ("structured_outputs", {"choice": "ab"}),
        ("structured_outputs", {"json": ""}),
        ("structured_outputs", {"json": "not json"}),
        ("structured_outputs", {"json": [1]}),
        ("structured_outputs", {"json_object": False}),
        ("structured_outputs", {"json_object": 1}),
        ("structured_outputs", {"grammar": " "}),
        ("structured_outputs", {"regex": "a\0"}),
        ("structured_outputs", {"json": json.loads('{"a":' * 65 + "1" + "}" * 65)}),
    ],
)
def test_out_of_range_names_the_field(name: str, value: Any) -> None:
    error = refusal({name: value})
    assert error.field.split(".")[0] == name
    assert error.message.isascii() and len(error.message) < 200


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"max_tokens": 257}, "max_tokens: 257 is above this server's cap of 256."),
        ({"n": 5}, "n: 5 is above this server's cap of 4."),
        ({"logprobs": 6}, "logprobs: 6 is above this server's cap of 5."),
        (
            {"logprobs": -1},
            "logprobs: -1 (the whole vocabulary) is above this server's cap of 5.",
        ),
        ({"min_tokens": 17}, "min_tokens: above max_tokens, which is 16."),
        (
            {"n": 2, "temperature": "0"},
            "n: must be 1 at temperature 0: every sequence would be the same.",
        ),
        ({"guided_decoding": {"regex": "a"}, "structured_outputs": {"regex": "a"}}, "two names"),
        ({"tempratur": 1}, "'tempratur': not a known sampling parameter."),
        ({"Temperature": 1}, "'Temperature': not a known sampling parameter."),
        ({"output_kind": 0}, "'output_kind': not a known sampling parameter."),
        ({'\n{"event":"allow"}': 1}, r"""'\n{"event":"allow"}': not a known"""),
        ({"\u2028\x1b[31m" + "x" * 9999: 1}, r"'\u2028\x1b[31m" + "x" * 58 + "': not a known"),
    ],
)
def test_caps_and_unknown_names(sampling: dict[str, Any], says: str) -> None:
    assert says in refusal(sampling).message


def test_only_what_is_given_and_max_tokens() -> None:
    assert canonical({}, LIMITS) == {"max_tokens": 16}
    assert canonical({"seed": None, "stop": None, "top_k": "3"}, LIMITS) == {
        "top_k": 3,
        "max_tokens": 16,
    }
    assert canonical({"guided_decoding": {"choice": ["a"]}}, LIMITS) == {
        "structured_outputs": {"choice": ["a"]},
        "max_tokens": 16,
    }


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    schema: dict[str, Any] = {"properties": {"zeta": {}, "alpha": {}}}
    sampling = canonical({"structured_outputs": {"json": schema}}, LIMITS)
    again = EngineRequest.from_json(EngineRequest(sampling).to_json())
    text = again.sampling["structured_outputs"]["json"]
    assert list(json.loads(text)["properties"]) == ["zeta", "alpha"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(name=st.sampled_from(sorted(TABLE)), value=JSON)
def test_any_value_is_either_canonical_or_an_invalid_argument(name: str, value: Any) -> None:
    try:
        found = canonical({name: value}, LIMITS)
    except InvalidArgument as error:
        assert error.message.isascii()
        return
    request = EngineRequest(found)
    assert EngineRequest.from_json(request.to_json()) == request
    assert canonical(found, LIMITS) == found
