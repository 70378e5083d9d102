"""What ``kubectl kustomize`` makes of ``deploy/kubernetes``, and what the goldens keep of it."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
GOLDEN = Path(__file__).parent / "golden"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
#: What a pod is judged by: shown in a golden word for word, the rest as a hash.
SHOWN = ("image", "command", "resources", "Probe", "securityContext", "nodeAffinity", "emptyDir",
         "claimName", "secretName", "terminationGracePeriodSeconds", "mountPath")  # fmt: skip


def tool(name: str) -> str:
    """A program that a package of requirements.txt brings; else the test is skipped."""
    found = Path(sys.executable).parent / name
    if not found.exists():
        pytest.skip(f"no {name} in the environment: make setup installs it")
    return str(found)


@functools.cache
def built(overlay: str) -> tuple[dict[str, Any], ...]:
    """The objects of an overlay; the test is skipped where there is no kubectl."""
    done = subprocess.run(
        [tool("kubectl"), "kustomize", str(KUBERNETES / "overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def named(overlay: str, kind: str, name: str = "") -> dict[str, Any]:
    """The one object of a kind, or the one of that name."""
    (found,) = (
        thing
        for thing in built(overlay)
        if thing["kind"] == kind and name in ("", thing["metadata"]["name"])
    )
    return found


def pod(overlay: str) -> dict[str, Any]:
    """The pod's specification, wherever the overlay describes it."""
    kinds = {thing["kind"] for thing in built(overlay)}
    if "ServingRuntime" not in kinds:
        spec: dict[str, Any] = named(overlay, "Deployment")["spec"]["template"]["spec"]
        return spec
    runtime = named(overlay, "ServingRuntime")["spec"]
    return {**named(overlay, "InferenceService")["spec"]["predictor"], **runtime}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, part in sorted(value.items()):
            yield from _leaves(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for number, part in enumerate(value):
            label = part.get("name", number) if isinstance(part, dict) else number
            yield from _leaves(part, f"{path}[{label}]")
    else:
        yield path, value


def summary(overlay: str) -> str:
    """Short enough to be read in a diff: a line per object with a hash of it, the pod's fields."""
    lines = []
    for thing in built(overlay):
        text = json.dumps(thing, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        if thing["kind"] == "PrometheusRule":  # Compared with what it is made from.
            digest = "deploy/prometheus/rules.yml"
        where = thing["metadata"].get("namespace", "")
        lines.append(f"{thing['kind']} {where}/{thing['metadata']['name']} {digest}")
    lines = [*sorted(lines), ""]
    for path, value in _leaves(pod(overlay)):
        if any(part in path for part in SHOWN):
            lines.append(f"{path} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def prometheus_rule() -> str:
    """``deploy/prometheus/rules.yml`` as the operator's PrometheusRule."""
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text("utf-8"))
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "lora-serving"},
        "spec": groups,
    }
    note = (
        "# deploy/prometheus/rules.yml for the Prometheus operator: change that one, then\n"
        "# `python -m tests.deploy.regenerate`.\n"
    )
    # Without aliases: annotations that are shared there are written out here.
    dumper = type("Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    return note + yaml.dump(rule, Dumper=dumper, sort_keys=False, width=100, allow_unicode=True)


RULES = KUBERNETES / "components" / "monitoring" / "rules.yaml"
