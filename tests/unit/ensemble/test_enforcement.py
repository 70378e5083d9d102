"""What follows from the policy's verdicts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml


def test_permissive_lets_through_and_tells(
    make_house: Any, caplog: pytest.LogCaptureFixture
) -> None:
    house = make_house("permissive")
    line = house.decide(lora_id=b"svc_chat_v1")
    assert "let through, though not_allowed: fin-app asked for svc_chat_v1" in caplog.text
    assert (line["allowed"], line["overlooked"]) == (True, ["not_allowed"])
    assert (line["principal"], line["control"]) == ("fin-app", "permissive")
    assert house.decide(lora_id=b"chat")["resolved"] == "svc_chat_v1"
    assert house.decide(lora_id=None)["overlooked"] == ["base_not_allowed"]
    line = house.decide(credential=None)
    assert (line["principal"], line["via"]) == ("anonymous", "nothing")
    assert line["overlooked"] == ["no_credential", "not_allowed"]
    assert house.decide()["overlooked"] == []
    for name in (b"svc_chat_v2", b"svc_none_v1", b"fin_risk_v3"):
        assert not house.decide(lora_id=name)["allowed"]


def test_off_asks_nobody(make_house: Any) -> None:
    house = make_house("off")
    line = house.decide(credential=None, lora_id=b"svc_chat_v1")
    assert (line["allowed"], line["principal"], line["overlooked"]) == (True, "anonymous", [])
    assert house.decide(credential=b"wrong")["principal"] == "anonymous"
    assert house.decide(lora_id=b"svc_chat_v1")["principal"] == "fin-app"
    assert not house.decide(lora_id=b"svc_none_v1")["allowed"]


@pytest.mark.parametrize("control", ["strict", "permissive", "off"])
def test_the_servers_own_list_holds_always(make_house: Any, control: str) -> None:
    house = make_house(control, ["chat", "fin_risk_v9"])
    line = house.decide()
    assert (line["allowed"], line["reason"]) == (False, "not_served")
    assert house.decide(credential=b"svc-key", lora_id=b"svc_chat_v1")["allowed"]
    assert house.decide(credential=b"svc-key", lora_id=None)["allowed"]


def test_without_the_role_caller(make_house: Any, policy_path: Path) -> None:
    body = yaml.safe_load(policy_path.read_text())
    body["principals"][0]["roles"] = ["admin"]
    policy_path.write_text(yaml.safe_dump(body))
    assert make_house().decide()["reason"] == "role"


def test_an_expired_key(make_house: Any, policy_path: Path) -> None:
    body = yaml.safe_load(policy_path.read_text())
    keys = body["principals"][0]["api_key_sha256"]
    keys[0] = {"sha256": keys[0], "expires": "2027-01-15T08:00:01Z"}
    keys.append(hashlib.sha256(b"new-key").hexdigest())
    policy_path.write_text(yaml.safe_dump(body))
    assert make_house().decide()["allowed"]  # 2027-01-15T08:00:00Z
    keys[0]["expires"] = "2027-01-15T08:00:00Z"
    policy_path.write_text(yaml.safe_dump(body))
    assert make_house().decide()["reason"] == "key_expired"
    assert make_house().decide(credential=b"new-key")["allowed"]
