"""A small house: two departments, an admin, adapters in every state, a chat model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ensemble.access import Policy, load_policy
from ensemble.audit import GateAudit
from ensemble.gate import Gate, PolicySource
from python_backend import runtime
from python_backend.adapters.catalog import Entry, Snapshot, SnapshotReader, State, publish
from python_backend.settings import Settings
from tests.unit.ensemble.audit_house import NOW_S, House, Lines
from tests.unit.ensemble.tokens import RSA_KEY, pem, section

KEYS = {"fin": "fin-key", "svc": "svc-key", "admin": "admin-key"}
TICKET_KEY = bytes(range(32))
BOOT_ID = "b" * 32
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('secret path /x') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def policy_body() -> dict[str, object]:
    return {
        "version": 1,
        "departments": {
            "fin": {"adapters": ["fin_*"], "base": False, "fusion": True},
            "svc": {"adapters": ["svc_*"], "base": True},
            "ops": {"adapters": ["*"], "base": True, "fusion": True},
        },
        "principals": [
            {"name": "fin-app", "department": "fin", "api_key_sha256": [sha(KEYS["fin"])]},
            {"name": "svc-app", "department": "svc", "api_key_sha256": sha(KEYS["svc"])},
            {
                "name": "admin",
                "department": "ops",
                "api_key_sha256": [sha(KEYS["admin"])],
                "roles": ["caller", "admin"],
            },
        ],
    }


@pytest.fixture
def policy_path(tmp_path: Path, policy_body: dict[str, object]) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(policy_body))
    return path


@pytest.fixture
def policy(policy_path: Path) -> Policy:
    return load_policy(policy_path)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
        )
    )
    return folder


@pytest.fixture
def snapshot(model_dir: Path) -> Snapshot:
    states = {
        "fin_risk_v1": State.READY,
        "fin_tone_v1": State.READY,
        "fin_risk_v2": State.FAILED,
        "fin_risk_v3": State.DISABLED,
        "fin_risk_v4": State.STAGING,
        "fin_risk_v5": State.REMOVING,
        "svc_chat_v1": State.READY,
        "svc_chat_v2": State.FAILED,
    }
    entries = {name: Entry(name, state, sha(name), rank=8) for name, state in states.items()}
    start = runtime.process_start(os.getpid())
    assert start is not None
    return Snapshot(BOOT_ID, 1, os.getpid(), start, str(model_dir), 512, entries)


@pytest.fixture
def make_gate(tmp_path: Path, policy_path: Path, snapshot: Snapshot) -> Callable[..., Gate]:
    """A gate, with limits of the caller's choice; ``published=False``: no snapshot yet."""

    def make(*, published: bool = True, **limits: object) -> Gate:
        settings = Settings.model_validate(
            {
                "adapters": {"root": tmp_path / "adapters"},
                "policy": policy_path,
                "state_dir": tmp_path / "state",
                "aliases": {"risk": "fin_risk_v1", "chat": "svc_chat_v1", "old": "fin_risk_v3"},
                "limits": {"max_tokens": 256, "n": 4, "logprobs": 5, "deadline_s": 60, **limits},
            }
        )
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        if published:
            aliases = settings.aliases
            publish(settings.run_dir, dataclasses.replace(snapshot, aliases=aliases))
        return Gate(
            settings,
            PolicySource(policy_path),
            SnapshotReader(settings.run_dir, BOOT_ID),
            TICKET_KEY,
            BOOT_ID,
        )

    return make


@pytest.fixture
def gate(make_gate: Callable[..., Gate]) -> Gate:
    return make_gate()


@pytest.fixture
def config(tmp_path: Path, make_gate: Callable[..., Gate], policy_path: Path) -> Path:
    """A serving.yaml with a published catalog and the ticket key beside it."""
    make_gate()
    path = tmp_path / "serving.yaml"
    body = {"adapters": {"root": "adapters"}, "policy": "policy.yaml", "state_dir": "state"}
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.fixture
def make_policy(tmp_path: Path, policy_body: Any) -> Callable[..., Policy]:
    def build(key: bytes | None = None, *, subject: str | None = None, **changes: Any) -> Policy:
        (tmp_path / "key.pem").write_bytes(pem(RSA_KEY) if key is None else key)
        (tmp_path / "key.pem").chmod(0o600)
        body = {**policy_body, "jwt": section(**changes)}
        if subject:
            body["principals"][0]["jwt_subject"] = subject
        path = tmp_path / "policy.yaml"
        path.write_text(yaml.safe_dump(body))
        return load_policy(path)

    return build


@pytest.fixture
def make_house(make_gate: Callable[..., Gate], policy_path: Path, tmp_path: Path) -> Any:
    def make(control: str = "strict", listed: list[str] | None = None) -> House:
        make_gate()  # publishes the catalog
        settings = Settings.model_validate(
            {
                "adapters": {"root": tmp_path},
                "policy": policy_path,
                "state_dir": tmp_path / "state",
                "aliases": {"risk": "fin_risk_v1", "chat": "svc_chat_v1"},
                "access": {"control": control, "allowed_lora_ids": listed},
            }
        )
        lines = Lines()
        gate = Gate(
            settings,
            PolicySource(policy_path),
            SnapshotReader(settings.run_dir, BOOT_ID),
            TICKET_KEY,
            BOOT_ID,
            audit=GateAudit(lines, settings.access.control),
            wall_clock=lambda: NOW_S,
        )
        return House(gate, lines)

    return make
