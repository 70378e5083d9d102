"""Where sampling parameters come from, and how long a request may take."""

from __future__ import annotations

from typing import Any

import pytest

from ensemble.sampling import deadline_s, requested
from python_backend.errors import InvalidArgument
from python_backend.messages import RawRequest

NAN = float("nan")


def test_the_tensor_replaces_the_parameters() -> None:
    raw = RawRequest(
        sampling_parameters=b'{"temperature": "0", "lora_name": "fin_risk_v1"}',
        parameters={"max_tokens": 5, "nonsense": 1},
    )
    assert requested(raw) == ({"temperature": "0"}, "fin_risk_v1")


def test_parameters_without_those_that_are_not_sampling() -> None:
    raw = RawRequest(
        parameters={
            "Authorization": "x",
            "X-API-Key": "x",
            "x-lora-id": "x",
            "credential": "x",
            "lora_id": "x",
            "lora_name": "x",
            "timeout_ms": 1,
            "triton_enable_empty_final_response": True,
            "binary_data_output": True,
            "sequence_id": 1,
            "sequence_start": True,
            "sequence_end": True,
            "priority": 1,
            "timeout": 1,
            "headers": "x",
            "max_tokens": 5,
        }
    )
    assert requested(raw) == ({"max_tokens": 5}, None)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid JSON at character 0"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"7", "must be a JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"temperature": NaN}', "NaN and infinite"),
        (b'{"temperature": -Infinity}', "NaN and infinite"),
        (b'{"temperature": 1e999}', "NaN and infinite"),
        (b'{"n": 1, "n": 2}', "the key 'n' is given twice"),
        (b'{"logit_bias": {"1": 1, "1": 2}}', "the key '1' is given twice"),
        (b'{"n": ' + b"9" * 5000 + b"}", "a number is too long"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "nested deeper than 84"),
        (b"[" * 100_000, "nested deeper than 84"),
        (b'{"stop": "\\ud800"}', "lone surrogate"),
        (b" " * (256 * 1024 + 1), "longer than 262144 bytes"),
    ],
)
def test_bad_json(data: bytes, says: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        requested(RawRequest(sampling_parameters=data))
    assert error.value.field == "sampling_parameters"
    assert says in error.value.message


def test_a_pair_of_surrogates_is_text() -> None:
    raw = RawRequest(sampling_parameters=b'{"stop": "\\ud83d\\ude00"}')
    assert requested(raw) == ({"stop": "😀"}, None)


@pytest.mark.parametrize(
    ("timeout_ms", "timeout_us", "expected"),
    [
        (None, 0, 60.0),
        (1500, 0, 1.5),
        ("1500", 0, 1.5),
        (1500.0, 0, 1.5),
        (10**18, 0, 60.0),
        (None, 250_000, 0.25),
        (100, 250_000, 0.1),
        (None, 10**15, 60.0),
    ],
)
def test_deadline(timeout_ms: Any, timeout_us: int, expected: float) -> None:
    raw = RawRequest(parameters={"timeout_ms": timeout_ms}, timeout_us=timeout_us)
    assert deadline_s(raw, 60.0) == expected


@pytest.mark.parametrize("value", [0, -1, "0", "-1", True, 1.5, "soon", NAN, [1]])
def test_bad_timeouts(value: Any) -> None:
    with pytest.raises(InvalidArgument) as error:
        deadline_s(RawRequest(parameters={"Timeout_ms": value}), 60.0)
    assert error.value.field == "timeout_ms"
