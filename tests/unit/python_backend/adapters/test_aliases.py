from __future__ import annotations

import pytest
from pydantic import ValidationError

from python_backend.adapters.aliases import Chosen, Route, check_alias

UIDS = [f"{number:032x}" for number in range(4000)]


def test_the_short_form() -> None:
    assert Route.model_validate("fin_risk_v2") == Route(to="fin_risk_v2")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_is_kept_and_a_request_keeps_its_version(share: float) -> None:
    route = Route(to="fin_risk_v2", canary="fin_risk_v3", share=share)
    chosen = [route.choose(uid) for uid in UIDS]
    assert chosen == [route.choose(uid) for uid in UIDS]
    assert abs(chosen.count("fin_risk_v3") / len(UIDS) - share) < 0.03
    if share in (0.0, 1.0):
        assert len(set(chosen)) == 1


def test_a_larger_share_takes_nobody_back() -> None:
    """Raising the share moves requests to the canary and never away from it."""
    small = Route(to="fin_risk_v2", canary="fin_risk_v3", share=0.1)
    large = Route(to="fin_risk_v2", canary="fin_risk_v3", share=0.4)
    for uid in UIDS:
        if small.choose(uid) == "fin_risk_v3":
            assert large.choose(uid) == "fin_risk_v3"


@pytest.mark.parametrize(
    ("value", "mentions"),
    [
        ("Fin", "not a lora_id"),
        ({"to": "fin_risk_v2", "canary": "base", "share": 0.1}, "not a lora_id"),
        ({"to": "fin_risk_v2", "share": 0.1}, "share without canary"),
        ({"to": "fin_risk_v2", "canary": "svc_chat_v1", "share": 0.1}, "different departments"),
        ({"to": "fin_risk_v2", "canary": "fin_risk_v3", "share": 1.5}, "less than or equal"),
        ({"to": "fin_risk_v2", "canary": "fin_risk_v3", "share": float("nan")}, "number"),
        ({"to": "fin_risk_v2", "other": 1}, "Extra"),
    ],
)
def test_wrong_routes(value: object, mentions: str) -> None:
    with pytest.raises(ValidationError, match=mentions):
        Route.model_validate(value)


def test_names_of_aliases() -> None:
    check_alias("fin_risk", Route(to="fin_risk_v2"))
    check_alias("fin_risk_v2", Route(to="fin_risk_v2"))
    for name in ("base", "fin_risk_v1", "with space", "a\n"):
        with pytest.raises(ValueError, match=r"reserved|lora_id"):
            check_alias(name, Route(to="fin_risk_v2"))
    with pytest.raises(ValueError, match="lora_id"):
        check_alias("fin_risk_v2", Route(to="fin_risk_v2", canary="fin_risk_v3", share=0.5))


def test_one_request_sees_one_target() -> None:
    routes = {"risk": Route(to="fin_risk_v2", canary="fin_risk_v3", share=0.5)}
    found = {uid: Chosen(routes, uid).candidates("risk") for uid in UIDS}
    assert all(targets[0] == routes["risk"].choose(uid) for uid, targets in found.items())
    assert set(found.values()) == {("fin_risk_v2",), ("fin_risk_v3", "fin_risk_v2")}
    assert Chosen(routes, UIDS[0]).candidates("none") == ()
