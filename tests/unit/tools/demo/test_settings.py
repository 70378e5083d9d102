"""Policy, keys and serving settings of the demo."""

import hashlib

import pytest
import yaml

from python_backend.fusion.gate_file import GATE_NAME
from tools.demo import settings
from tools.demo.errors import DemoError
from tools.demo.gate import FOLDER, KEYS


def test_keys_are_long_distinct_and_new_each_time() -> None:
    one, two = settings.new_keys(), settings.new_keys()
    assert set(one) == {"fin", "svc", "qa", "admin"}
    assert len({*one.values(), *two.values()}) == 8
    assert all(len(key) >= 43 for key in one.values())


def test_the_policy_holds_the_hash_of_each_key_and_no_key() -> None:
    keys = settings.new_keys()
    text = settings.policy_text(keys)
    policy = yaml.safe_load(text)
    found = {p["name"]: (p["department"], p["api_key_sha256"]) for p in policy["principals"]}

    def digest(name: str) -> list[str]:
        return [hashlib.sha256(keys[name].encode("utf-8")).hexdigest()]

    assert found == {
        "fin-app": ("fin", digest("fin")),
        "svc-app": ("svc", digest("svc")),
        "qa-app": ("qa", digest("qa")),
        "operator": ("ops", digest("admin")),
    }
    assert not any(key in text for key in keys.values())


def test_what_departments_and_roles_may_do() -> None:
    policy = yaml.safe_load(settings.policy_text(settings.new_keys()))
    assert policy["version"] == 1
    assert policy["departments"] == {
        "fin": {"adapters": ["fin_*"], "base": True},
        "svc": {"adapters": ["svc_*"], "base": True},
        "qa": {"adapters": ["qa_*"], "base": True},
        "mark": {"adapters": ["mark_*"], "base": False},
        "ops": {"adapters": ["*"], "base": True, "fusion": True},
    }
    admins = [p["name"] for p in policy["principals"] if "admin" in p["roles"]]
    assert admins == ["operator"]


def test_new_hashes_leave_other_edits_alone() -> None:
    old, new = settings.new_keys(), settings.new_keys()
    edited = settings.policy_text(old) + "# an edit\n"
    assert settings.replace_hashes(edited, old, new) == settings.policy_text(new) + "# an edit\n"


def test_a_policy_of_other_keys_is_named_with_the_cure() -> None:
    text = settings.policy_text(settings.new_keys())
    with pytest.raises(DemoError, match=r"policy\.yaml .*'fin'.*--force"):
        settings.replace_hashes(text, settings.new_keys(), settings.new_keys())


def test_serving_settings() -> None:
    serving = yaml.safe_load(settings.SERVING)
    assert set(serving) == {
        "engine",
        "adapters",
        "policy",
        "breakers",
        "fusion",
        "signing",
        "aliases",
    }
    assert serving["fusion"] == {"auto": {"gate": FOLDER}}
    assert serving["signing"] == {"keys_file": KEYS, "require": [GATE_NAME]}
    assert serving["engine"] == {
        "model": "model",
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "max_loras": 4,
        "max_lora_rank": 16,
        "enforce_eager": True,
        "kv_cache_memory_bytes": 256 * 1024**2,
    }
    assert serving["adapters"] == {"root": "adapters"}
    assert serving["policy"] == "policy.yaml"
    assert serving["breakers"] == {"load_latency": {"warning": 0.5, "open": 2.0, "close": 0.3}}
    assert serving["aliases"] == {"fin_risk": "fin_risk_v1"}
