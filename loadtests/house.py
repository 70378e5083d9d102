"""The folder of a load test's own server: the demo's model, its markers under the departments'
names, a policy with a key for each department, and the settings of scenario and configuration.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from loadtests import configurations
from loadtests.cast import Cast, Member, spares_of
from loadtests.configurations import FAIR_QUEUE, merged
from loadtests.problem import LoadProblem
from tools.bench.server import engine_settings
from tools.demo.files import write_file, write_json
from tools.demo.folder import is_demo
from tools.demo.settings import key_hash, new_keys
from tools.signing.command import sign_secretly

KEYS, MARKERS, SPARES = "keys.json", "markers.json", "spares"
SIGNING_KEYS = "signing-keys.yaml"
#: Finance's adapters are served only signed.
SIGNED = "fin_*"
_KEY_ID = "load-test"
_OPERATOR = "admin"
_EVERYONE = "everyone"


def build_house(
    folder: Path,
    demo: Path,
    markers: Mapping[str, int],
    spares: int,
    settings: Mapping[str, Any],
    protections: Mapping[str, bool],
) -> Cast:
    """Fills the empty ``folder``; the demo is only read.

    Args:
        markers: how many adapters each department gets.
        spares: how many more lie ready for an operator.
        settings: on top of the demo's.

    Raises:
        LoadProblem: there is no such demo, or it has too few markers.
    """
    words = _markers(demo, sum(markers.values()) + spares)
    names = iter(sorted(words))
    members: dict[str, tuple[Member, ...]] = {}
    for department, count in markers.items():
        found = []
        for number in range(1, count + 1):
            marker, lora_id = next(names), f"{department}_w{number:04d}_v1"
            shutil.copytree(demo / "adapters" / marker, folder / "adapters" / lora_id)
            found.append(Member(department, lora_id, words[marker]))
        members[department] = tuple(found)
    (folder / SPARES).mkdir()
    left = [next(names) for _ in range(spares)]
    for marker in left:
        shutil.copytree(demo / "adapters" / marker, folder / SPARES / marker)
    write_json(folder / f"{SPARES}.json", {marker: words[marker] for marker in left})
    keys = {name: key for name, key in new_keys().items() if name in {*markers, _OPERATOR}}
    write_json(folder / KEYS, keys, mode=0o600)
    write_json(
        folder / MARKERS,
        {str(one.lora_id): one.word for part in members.values() for one in part},
    )
    _sign(folder, [one.lora_id for one in members.get("fin", ()) if one.lora_id])
    policy = _policy(keys, shared=not protections[FAIR_QUEUE])
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False), "utf-8")
    serving = merged(
        {
            "engine": engine_settings(demo),
            "adapters": {"root": "adapters", "add_from": [SPARES]},
            "policy": "policy.yaml",
            "signing": {"keys_file": SIGNING_KEYS, "require": [SIGNED]},
            # As the demo's: beside a model on the same CPU reading takes longer than on a server.
            "breakers": {"load_latency": {"warning": 0.5, "open": 2.0, "close": 0.3}},
        },
        merged(settings, configurations.settings(protections)),
    )
    (folder / "serving.yaml").write_text(yaml.safe_dump(serving, sort_keys=False), "utf-8")
    return Cast(members, spares_of({marker: words[marker] for marker in left}))


def _sign(folder: Path, lora_ids: Sequence[str]) -> None:
    key = {"id": _KEY_ID, "secret": secrets.token_hex(32), "adapters": [SIGNED]}
    keys = folder / SIGNING_KEYS
    write_file(keys, yaml.safe_dump({"version": 1, "keys": [key]}), mode=0o600)
    for lora_id in lora_ids:
        sign_secretly(folder / "adapters" / lora_id, lora_id, keys, _KEY_ID)


def _markers(demo: Path, wanted: int) -> dict[str, str]:
    if not is_demo(demo):
        raise LoadProblem(
            f"{demo} is no demo folder; `python -m tools demo --out {demo} --markers {wanted}` "
            f"makes one"
        )
    words: dict[str, str] = json.loads((demo / MARKERS).read_text("utf-8"))
    if len(words) < wanted:
        raise LoadProblem(
            f"{demo / MARKERS} has {len(words)} markers and this needs {wanted}: "
            f"`python -m tools demo --out {demo} --markers {wanted}` adds them"
        )
    return words


def _policy(keys: Mapping[str, str], *, shared: bool) -> dict[str, Any]:
    """Each key its own department; or all one department that may use everything."""

    def department(name: str) -> dict[str, Any]:
        return {
            "adapters": ["*"] if name in (_EVERYONE, _OPERATOR) else [f"{name}_*"],
            "base": True,
        }

    of = {name: _EVERYONE if shared else name for name in keys}
    return {
        "version": 1,
        "departments": {name: department(name) for name in dict.fromkeys(of.values())},
        "principals": [
            {
                "name": f"{name}-app",
                "department": of[name],
                "api_key_sha256": [key_hash(key)],
                "roles": ["caller", "admin"] if name == _OPERATOR else ["caller"],
            }
            for name, key in keys.items()
        ],
    }
