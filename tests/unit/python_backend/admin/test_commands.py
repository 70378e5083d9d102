from __future__ import annotations

import json
from typing import Any

import pytest

from python_backend.admin import commands
from python_backend.admin.commands import Command, parse
from python_backend.errors import InvalidArgument


def command(**body: Any) -> bytes:
    return json.dumps(body).encode()


def test_the_canonical_form_is_read_back() -> None:
    found = parse(b' {"share": 1, "to":"fin_risk_v2" , "op":"alias_set","alias":"fin_risk"} ')
    assert found == Command("alias_set", alias="fin_risk", to="fin_risk_v2", share=1.0)
    assert Command.from_json(found.to_json()) == found
    assert found.to_json() == json.dumps(json.loads(found.to_json()), sort_keys=True).replace(
        ", ", ","
    ).replace(": ", ":")


@pytest.mark.parametrize(
    ("data", "mentions"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not a JSON object"),
        (b'{"op": "list", "op": "status"}', "twice"),
        (b" " * (commands.MAX_BYTES + 1), "longer than"),
        (command(), "op: must be one of list"),
        (command(op=1), "op: must be one of"),
        (command(op="drop\n"), "op: must be one of"),
        (command(op="list", lora_id="fin_risk_v1"), "list has no such field"),
        (command(op="remove"), "lora_id: remove needs it"),
        (command(op="update", lora_id="fin_risk_v1"), "source: update needs it"),
        (command(op="remove", lora_id="fin_risk_v1\n"), "lora_id: not a lora_id"),
        (command(op="remove", lora_id="../x"), "lora_id: not a lora_id"),
        (command(op="add", lora_id="base"), "lora_id: this name is reserved"),
        (command(op="remove", lora_id=["fin_risk_v1"]), "lora_id: must be a string"),
        (command(op="add", lora_id="fin_risk_v1", source=""), "source: must be 1 to"),
        (command(op="add", lora_id="fin_risk_v1", source="a\0b"), "source: must be 1 to"),
        (command(op="add", lora_id="fin_risk_v1", source="x" * 5000), "source: must be 1 to"),
        (command(op="cancel", request_uid="a b"), "request_uid: must be 1 to 64"),
        (command(op="job", job=""), "job: must be 1 to 64"),
        (command(op="alias_set", alias="base", to="fin_risk_v1"), "alias: reserved"),
        (command(op="alias_set", alias="fin_a_v1", to="fin_a_v1"), "alias: reserved"),
        (command(op="alias_set", alias="a", to="fin_a_v1", share=True), "share: must be a number"),
        (command(op="alias_set", alias="a", to="fin_a_v1", share=1.1), "share: must be a number"),
        (command(op="breaker_reset"), "breaker: breaker_reset needs it"),
        (command(op="breaker_reset", breaker="routing/../x"), "breaker: must be SIGNAL"),
        (command(op="breaker_reset", breaker="routing/\n"), "breaker: must be SIGNAL"),
        (command(op="list", by_admin=True), "no such field"),
        (command(op="status", policy_error="x"), "no such field"),
    ],
)
def test_what_is_no_command(data: bytes, mentions: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(data)
    assert mentions in caught.value.sentence


@pytest.mark.parametrize(
    "name",
    ["switch_rate", "routing/fin_risk_v1@0123456789ab", "routing/fin_a_v1*0.6+svc_b_v1*-0.3@0"],
)
def test_breakers_by_name(name: str) -> None:
    assert parse(command(op="breaker_reset", breaker=name)).breaker == name


def test_every_operation_has_a_home() -> None:
    from python_backend.admin.desk import Desk

    for op in commands.OPERATIONS.keys() - commands.FOR_CALLERS:
        assert callable(getattr(Desk, f"_{op}")), op
