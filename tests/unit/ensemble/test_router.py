from __future__ import annotations

import hashlib
from typing import Any

import pytest

from ensemble.access import Department, Policy
from ensemble.enforcement import Enforcement, Trace
from ensemble.router import route
from python_backend.access_settings import Control
from python_backend.adapters.aliases import Chosen, Route
from python_backend.adapters.catalog import Entry, Snapshot, State
from python_backend.errors import AdapterFailed, InvalidArgument, NotFound, ServingError
from python_backend.messages import RawRequest
from python_backend.ticket import Part

ALIASES = {"risk": "fin_risk_v1", "chat": "svc_chat_v1", "old": "fin_risk_v3"}


@pytest.fixture
def go(policy: Policy, snapshot: Snapshot) -> Any:
    def call(
        tensor: bytes | None = None, /, *, who: int = 0, json: Any = None, **parameters: Any
    ) -> tuple[Part, ...]:
        return route(
            RawRequest(lora_id=tensor, parameters=parameters),
            json,
            principal=policy.principals[who],
            policy=policy,
            snapshot=snapshot,
            aliases=Chosen({name: Route(to=to) for name, to in ALIASES.items()}, "u"),
        )

    return call


RISK = (Part("fin_risk_v1", hashlib.sha256(b"fin_risk_v1").hexdigest(), 1.0),)


def message(go: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ServingError) as error:
        go(*args, **kwargs)
    return error.value.message


def test_every_way_to_name_an_adapter(go: Any) -> None:
    assert go(b"fin_risk_v1") == RISK
    assert go(lora_id="fin_risk_v1") == RISK
    assert go(LORA_ID="fin_risk_v1") == RISK
    assert go(json="fin_risk_v1") == RISK
    assert go(lora_name="fin_risk_v1") == RISK
    assert go(**{"X-Lora-Id": "risk"}) == RISK
    assert go(b"risk", json="fin_risk_v1", lora_id="risk", lora_name=None) == RISK


def test_base(go: Any) -> None:
    assert go(who=1) == ()
    assert go(b"base", who=1) == ()
    assert go(b"base", json="base", who=2) == ()


@pytest.mark.parametrize(
    ("tensor", "name", "header"),
    [
        (b"fin_risk_v1", "fin_risk_v9", None),
        (b"fin_risk_v1", None, "base"),
        (b"base", "fin_risk_v1", None),
        (None, "risk", "fin_risk_v2"),
    ],
)
def test_names_that_disagree(go: Any, tensor: Any, name: Any, header: Any) -> None:
    got = message(go, tensor, json=name, **{"x-lora-id": header})
    assert got == "invalid_argument: lora_id: lora_id, lora_name and x-lora-id must agree."


def test_what_one_may_not_see_looks_like_what_there_is_not(go: Any) -> None:
    answers = {
        message(go, b"fin_nothing_v1"),  # unknown, own department
        message(go, b"fin_risk_v3"),  # disabled
        message(go, b"fin_risk_v4"),  # staging
        message(go, b"fin_risk_v5"),  # removing
        message(go, b"svc_chat_v1"),  # ready, another department's
        message(go, b"svc_chat_v2"),  # failed, another department's
        message(go, b"svc_none_v1"),  # unknown, another department's
        message(go, b"old"),  # alias of a disabled adapter of one's own
        message(go),  # base, not allowed
        message(go, b"base"),
    }
    assert answers == {NotFound().message}


def test_an_alias_to_what_one_may_not_see_is_no_alias(go: Any) -> None:
    assert message(go, b"chat") == message(go, b"chatx")
    assert message(go, b"chat").startswith("invalid_argument: lora_id: not a lora_id")
    assert go(b"chat", who=1)[0].lora_id == "svc_chat_v1"


def test_a_failed_adapter_is_told_to_its_users_only(go: Any) -> None:
    with pytest.raises(AdapterFailed) as error:
        go(b"fin_risk_v2")
    assert error.value.sentence == (
        "this adapter did not pass validation; its owner sees why in the catalog."
    )


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"   ",
        b" fin_risk_v1",
        b"fin_risk_v1\n",
        b"FIN_RISK_V1",
        b"../fin_risk_v1",
        b"/etc",
        b"a/../../b",
        b"..%2fb",
        b"a\\..\\b",
        b".",
        b"..",
        b"fin_risk_v1\0",
        b"llama:7b",
        b"v1.2",
        "ｆin_risk_v1".encode(),
        "é".encode(),
        b"fin_ri\xe2\x80\x8bsk_v1",
        b"\xff\xfe",
        b"fin_" + b"a" * 5000 + b"_v1",
        b"none",
        b"default",
        b"all",
        b"Base",
    ],
)
def test_malformed_names(go: Any, name: bytes) -> None:
    with pytest.raises(InvalidArgument) as error:
        go(name, who=2)
    assert error.value.field == "lora_id"
    assert error.value.message.isascii() and len(error.value.message) < 200


@pytest.mark.parametrize("value", [7, True, 1.5, ["fin_risk_v1"], {"a": 1}])
def test_names_that_are_no_strings(go: Any, value: Any) -> None:
    assert message(go, json=value) == "invalid_argument: lora_name: must be a string."
    for field in ("lora_id", "lora_name", "x-lora-id"):
        got = message(go, **{field: value})
        assert got == f"invalid_argument: {field}: must be a string."


@pytest.mark.parametrize(
    ("globs", "control", "resolved"),
    [
        (["fin_risk_*"], "strict", "fin_risk_v1"),
        (["fin_*"], "strict", "fin_new_v1"),
        ([], "permissive", "fin_new_v1"),
        ([], "strict", ""),
    ],
)
def test_a_canary_is_for_those_who_may_use_it(
    policy: Policy, snapshot: Snapshot, globs: list[str], control: Control, resolved: str
) -> None:
    departments = {"fin": Department(adapters=tuple(globs)), "svc": Department()}
    departments |= {name: Department() for name in policy.departments if name not in departments}
    narrow = Policy(version=1, departments=departments, principals=policy.principals)
    snapshot.entries["fin_new_v1"] = Entry("fin_new_v1", State.READY, "e" * 64)
    trace = Trace()
    routes = {"risk": Route(to="fin_risk_v1", canary="fin_new_v1", share=1.0)}

    def call() -> tuple[Part, ...]:
        return route(
            RawRequest(lora_id=b"risk"),
            None,
            principal=narrow.principals[0],
            policy=narrow,
            snapshot=snapshot,
            aliases=Chosen(routes, "u"),
            enforcement=Enforcement(control),
            trace=trace,
        )

    if resolved:
        assert [part.lora_id for part in call()] == [resolved]
    else:
        with pytest.raises(InvalidArgument, match="not a lora_id"):
            call()
    assert trace.resolved == resolved
