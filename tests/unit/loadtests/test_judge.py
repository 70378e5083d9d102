"""An answer is right if both its words and its name are the asked adapter's."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.judge import outcome, route
from loadtests.plan import Call

WORDS = frozenset({"alpha", "bravo"})


def asked(**changes: Any) -> Call:
    fields: dict[str, Any] = {
        "department": "fin",
        "lora_id": "fin_w0001_v1",
        "word": "alpha",
        "prompt": "Hi",
        "tokens": 3,
    }
    return Call(**{**fields, **changes})


BASE: dict[str, Any] = {"lora_id": None, "word": None}


@pytest.mark.parametrize(
    ("call", "text", "served", "expected"),
    [
        (asked(), " alpha alpha alpha", "fin_w0001_v1@abc", "right"),
        (asked(), " alpha bravo alpha", "fin_w0001_v1@abc", "wrong"),
        (asked(), " alpha alpha alpha", "fin_w0002_v1@abc", "wrong"),
        (asked(), " alpha alpha", "base", "wrong"),
        (asked(), " bravo bravo", "fin_w0001_v1@abc", "wrong"),
        (asked(), " I am a model", "fin_w0001_v1@abc", "wrong"),
        (asked(), "", None, "unchecked"),
        (asked(kind="cancel"), " alpha", "fin_w0001_v1@abc", "right"),
        (asked(kind="cancel"), " bravo", "fin_w0001_v1@abc", "wrong"),
        (asked(kind="forbidden"), " bravo", "svc_w0001_v1@abc", "unchecked"),
        (asked(word=None), " anything", "fin_w0001_v1@abc", "unchecked"),
        (asked(word=None), " anything", "fin_w0002_v1@abc", "wrong"),
        (asked(**BASE), " The capital of", "base", "right"),
        (asked(**BASE), " alpha alpha alpha", "base", "wrong"),
        (asked(**BASE), " alpha and so on", "base", "right"),
        (asked(**BASE), " The capital of", "fin_w0001_v1@abc", "wrong"),
    ],
)
def test_routes(call: Call, text: str, served: str | None, expected: str) -> None:
    assert route(call, text, served, WORDS) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("not_found: no adapter of that name is available to you.", "not_found"),
        ("in ensemble 'lora_generate', overloaded: full. retry_after=1.5", "overloaded"),
        ("internal: something went wrong on our side (error id 1).", "internal"),
        ("Socket closed", "transport"),
        ("failed to connect to all addresses", "transport"),
        ("", "transport"),
    ],
)
def test_outcomes(message: str, expected: str) -> None:
    assert outcome(message) == expected
