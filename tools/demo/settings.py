"""The demo's policy, keys and serving settings."""

import hashlib
import secrets
from collections.abc import Mapping

from tools.demo.errors import DemoError

KEY_NAMES = ("fin", "svc", "qa", "admin")
"""Whose keys keys.json holds; ``admin`` is the operator, who may use everything."""

POLICY = """\
# Who may use what. Read by the gate and by the engine; a change is picked up while serving.
version: 1

# A department is a tenant. adapters: globs over lora_id that it may use.
# base: whether it may also use the base model without an adapter; fusion: whether it may mix them.
departments:
  fin:  {{adapters: ["fin_*"], base: true}}
  svc:  {{adapters: ["svc_*"], base: true}}
  qa:   {{adapters: ["qa_*"], base: true}}
  mark: {{adapters: ["mark_*"], base: false}}
  ops:  {{adapters: ["*"], base: true, fusion: true}}

# A principal is who calls. api_key_sha256: sha256 (hex) of each key that proves the name, so that
# two keys can be valid while one replaces the other; the keys themselves are in keys.json only.
# roles: caller may generate, admin may manage adapters.
principals:
  - name: fin-app
    department: fin
    api_key_sha256: ["{fin}"]
    roles: [caller]
  - name: svc-app
    department: svc
    api_key_sha256: ["{svc}"]
    roles: [caller]
  - name: qa-app
    department: qa
    api_key_sha256: ["{qa}"]
    roles: [caller]
  - name: operator
    department: ops
    api_key_sha256: ["{admin}"]
    roles: [caller, admin]
"""

SERVING = """\
# What is served. Paths are relative to this file.

# vLLM's engine arguments, by vLLM's names.
engine:
  model: model                       # folder of the base model
  dtype: bfloat16
  max_model_len: 1024                # prompt and answer together, in tokens
  max_num_seqs: 16                   # answers computed in one step
  max_loras: 4                       # adapters in the engine at once (slots)
  max_lora_rank: 16                  # largest rank a slot can take
  enforce_eager: true                # no compilation: starts sooner
  kv_cache_memory_bytes: 268435456   # 256 MiB; on a CPU the KV cache is sized by bytes

adapters:
  root: adapters                     # one folder per adapter, named by its lora_id

policy: policy.yaml                  # who may use what

# Seconds. Beside a model on the same CPU reading takes longer than on a server with a GPU.
breakers:
  load_latency: {warning: 0.5, open: 2.0, close: 0.3}

# The gate that weighs adapters for a prompt, and who vouches for it.
fusion:
  auto: {gate: gate}
signing: {keys_file: signing-keys.yaml, require: [fusion_gate_v1]}

# Free names for adapters; access is decided on the lora_id they stand for.
aliases: {fin_risk: fin_risk_v1}
"""


def new_keys() -> dict[str, str]:
    """Return a fresh random API key for each name."""
    return {name: secrets.token_urlsafe(32) for name in KEY_NAMES}


def key_hash(key: str) -> str:
    """Return the hex sha256 of a key's UTF-8 bytes, as the policy file holds it."""
    return hashlib.sha256(key.encode()).hexdigest()


def policy_text(keys: Mapping[str, str]) -> str:
    """Return policy.yaml for these keys."""
    return POLICY.format(**{name: key_hash(keys[name]) for name in KEY_NAMES})


def replace_hashes(policy: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return ``policy`` with each old key's hash replaced, whatever else was edited in it."""
    for name in KEY_NAMES:
        if name not in old or key_hash(old[name]) not in policy:
            raise DemoError(
                f"policy.yaml and keys.json do not belong together: the hash of the key {name!r} "
                f"is not in the policy; run `python -m tools demo --force` to make both afresh"
            )
        policy = policy.replace(key_hash(old[name]), key_hash(new[name]))
    return policy
