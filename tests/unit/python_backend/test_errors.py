from __future__ import annotations

import pytest

from python_backend import errors
from python_backend.errors import (
    CODES,
    InvalidArgument,
    NotFound,
    Overloaded,
    ServingError,
    Unauthenticated,
    parse,
)

SAMPLES: list[ServingError] = [
    Unauthenticated("who are you?"),
    NotFound(),
    InvalidArgument("lora_id", "not a lora_id: a: b"),
    errors.AdapterFailed("bad."),
    errors.BreakerOpen("wait.", retry_after=2),
    Overloaded("full.", retry_after=0.25),
    errors.DeadlineExceeded("late."),
    errors.Cancelled("gone."),
    errors.Unavailable("starting.", retry_after=5),
    errors.Internal(),
]


def test_the_list_of_codes_is_closed() -> None:
    assert list(CODES) == [
        "unauthenticated",
        "not_found",
        "invalid_argument",
        "adapter_failed",
        "breaker_open",
        "overloaded",
        "deadline_exceeded",
        "cancelled",
        "unavailable",
        "internal",
    ]
    assert {type(sample) for sample in SAMPLES} == set(CODES.values())


@pytest.mark.parametrize("prefix", ["", "in ensemble 'lora_generate', "])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.code)
def test_a_message_survives_the_way(sample: ServingError, prefix: str) -> None:
    got = parse(prefix + sample.message)
    assert type(got) is type(sample)
    assert got.message == sample.message
    assert got.sentence == sample.sentence
    assert got.retry_after == sample.retry_after


def test_messages() -> None:
    assert NotFound().message == "not_found: no adapter of that name is available to you."
    assert InvalidArgument("n", "too many").message == "invalid_argument: n: too many."
    assert Overloaded("full.", retry_after=0.25).message == "overloaded: full. retry_after=0.25"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Failed to open /dev/shm/x: no such region",
        "Traceback (most recent call last): x",
        "oom: killed",
        "internal error",
        "in ensemble 'x', in ensemble 'y', not_found: z",
        "Not_found: x",
    ],
)
def test_what_is_not_ours_is_internal_and_not_passed_on(message: str) -> None:
    got = parse(message)
    assert type(got) is errors.Internal
    assert got.message == (f"internal: something went wrong on our side (error id {got.error_id}).")


def test_every_error_has_a_triton_status() -> None:
    allowed = {"INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "INTERNAL", "CANCELLED"}
    assert {kind.triton_status for kind in CODES.values()} == allowed
