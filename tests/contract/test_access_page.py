"""docs/access.md says what is there."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from ensemble.access import Policy

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "access.md").read_text("utf-8")


def test_the_policy_is_a_policy() -> None:
    found = re.search(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    assert found
    text = found[1].replace("<sha256 of the old key, hex>", "a" * 64)
    policy = Policy.model_validate(
        yaml.safe_load(text.replace("<sha256 of the new key, hex>", "b" * 64))
    )
    assert policy.jwt is not None
    assert policy.by_subject("service-account-7") is not None


def test_every_event_is_named() -> None:
    code = "".join(
        (ROOT / path).read_text("utf-8")
        for path in (
            "ensemble/audit.py",
            "ensemble/gate_server.py",
            "python_backend/completion.py",
            "python_backend/audit/completions.py",
        )
    )
    for event in re.findall(r"`([a-z_]+)`", PAGE.split("| event |")[1].split("\n\n")[0]):
        assert f'"{event}"' in code, event
