"""The objects of deploy/kubernetes against each other, and against what the server is."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from ensemble.access import load_policy
from python_backend import memory_plan, settings
from tests.deploy.kustomize import KUBERNETES, OVERLAYS, ROOT, built, named, pod
from tools.health import health
from tools.plan.command import parse_bytes
from tools.serving.arguments import EXIT_TIMEOUT_S

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
GIB = 1 << 30
#: Qwen2.5-7B, for which base/config/serving.yaml was planned.
MODEL = memory_plan.Model(
    layers=28,
    hidden=3584,
    heads=28,
    kv_heads=4,
    head_dim=128,
    intermediate=18944,
    vocab=152064,
    dtype_bytes=2,
    tied=False,
)
#: Made by whoever applies an overlay; docs/kubernetes.md says how.
SECRETS = {"lora-serving-keys", "lora-serving-object-store"}


def bytes_of(quantity: str) -> int:
    return parse_bytes(f"{quantity}B") if quantity[-1] == "i" else int(quantity)


def server(overlay: str) -> dict[str, Any]:
    (container,) = pod(overlay)["containers"]
    assert isinstance(container, dict)
    return container


def containers(overlay: str) -> list[dict[str, Any]]:
    return [*pod(overlay).get("initContainers", []), server(overlay)]


def volumes(overlay: str) -> dict[str, dict[str, Any]]:
    return {volume["name"]: volume for volume in pod(overlay)["volumes"]}


@pytest.fixture(scope="module")
def served() -> settings.Settings:
    return settings.load(KUBERNETES / "base" / "config" / "serving.yaml")


@each_overlay
def test_the_job_is_called_what_the_rules_call_it(overlay: str) -> None:
    label = named(overlay, "PodMonitor")["spec"]["jobLabel"]
    text = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text("utf-8")
    assert {pod_labels(overlay)[label]} == set(re.findall(r'job="([^"]+)"', text))


def pod_labels(overlay: str) -> dict[str, str]:
    if any(thing["kind"] == "ServingRuntime" for thing in built(overlay)):
        labels: dict[str, str] = named(overlay, "ServingRuntime")["spec"]["labels"]
        return labels
    found: dict[str, str] = named(overlay, "Deployment")["spec"]["template"]["metadata"]["labels"]
    return found


@each_overlay
def test_selectors_meet_the_pods_and_ports_their_names(overlay: str) -> None:
    labels = pod_labels(overlay).items()
    ports = {port["name"]: port["containerPort"] for port in server(overlay)["ports"]}
    assert ports == {"http": 8000, "grpc": 8001, "metrics": 8002}
    for thing in built(overlay):
        spec = thing.get("spec", {})
        if thing["kind"] == "Service":
            assert spec["selector"].items() <= labels
            assert {port["targetPort"] for port in spec["ports"]} <= {"http", "grpc"}
        if thing["kind"] in {"PodDisruptionBudget", "PodMonitor"}:
            assert spec["selector"]["matchLabels"].items() <= labels
        if thing["kind"] == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"].items() <= labels
            named_ports = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
            assert named_ports == ["http", "grpc", "metrics"]
    for spread in pod(overlay)["topologySpreadConstraints"]:
        assert spread["labelSelector"]["matchLabels"].items() <= labels
    terms = pod(overlay)["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    group = pod_labels(overlay)["lora-group"]
    assert terms == [
        {"matchExpressions": [{"key": "lora-group", "operator": "In", "values": [group]}]}
    ]


@each_overlay
def test_whatever_is_named_is_there(overlay: str) -> None:
    there = {(thing["kind"], thing["metadata"]["name"]) for thing in built(overlay)}
    for volume in volumes(overlay).values():
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in there
        elif "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there
        elif "secret" in volume:
            assert volume["secret"]["secretName"] in SECRETS
        else:
            assert set(volume) == {"name", "emptyDir"}
    mounted = {mount["name"] for one in containers(overlay) for mount in one["volumeMounts"]}
    assert mounted == set(volumes(overlay))
    assert ("ServiceAccount", pod(overlay)["serviceAccountName"]) in there
    namespaces = {thing["metadata"].get("namespace") for thing in built(overlay)}
    assert len(namespaces) == 1 and None not in namespaces


@each_overlay
def test_nobody_is_root_and_nothing_is_written_but_to_volumes(overlay: str) -> None:
    assert pod(overlay)["securityContext"]["runAsNonRoot"] is True
    assert pod(overlay)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(overlay)["automountServiceAccountToken"] is False
    for container in containers(overlay):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }
    writable = {
        mount["mountPath"] for mount in server(overlay)["volumeMounts"] if not mount.get("readOnly")
    }
    home = "/var/lib/lora-serving"
    assert writable == {home, f"{home}/state", f"{home}/state/audit", "/tmp", "/dev/shm"}


@pytest.mark.parametrize("overlay", ["openshift", "kserve"])
def test_no_user_and_no_group_is_named(overlay: str) -> None:
    assert not re.search(
        "runAsUser|runAsGroup|fsGroup|supplementalGroups", json.dumps(pod(overlay))
    )


def test_kserve_runs_the_pod_of_the_others() -> None:
    theirs, ours = pod("kserve"), copy.deepcopy(pod("plain"))
    del ours["securityContext"]["fsGroup"], ours["securityContext"]["fsGroupChangePolicy"]
    ours["containers"][0]["name"] = "kserve-container"
    assert {key: theirs[key] for key in ours} == ours
    assert named("kserve", "ScaledObject")["spec"]["scaleTargetRef"]["name"] == (
        f"{named('kserve', 'InferenceService')['metadata']['name']}-predictor"
    )
    assert "Deployment" not in {thing["kind"] for thing in built("kserve")}


def test_the_settings_are_settings_and_the_policy_a_policy(served: settings.Settings) -> None:
    policy = load_policy(served.policy)
    assert policy.may_use(policy.principals[0], "fin_risk_v1")
    assert served.engine["model"] == "/mnt/models"
    assert served.adapters.root == Path("/mnt/adapters")
    paths = {mount["mountPath"] for mount in server("plain")["volumeMounts"]}
    assert {"/mnt/models", "/mnt/adapters", "/run/lora-keys"} <= paths


def test_the_engine_is_the_plans(served: settings.Settings) -> None:
    assert served.memory_limit_bytes == 80 * GIB
    wanted = {name: served.engine[name] for name in ("max_loras", "max_model_len")}
    plan = memory_plan.plan(MODEL, 80 * GIB, rank=64, **wanted)
    assert plan.engine().items() <= served.engine.items()
    assert dataclasses.asdict(plan)["kv_tokens"] > served.engine["max_model_len"]


@each_overlay
def test_the_volumes_hold_what_the_settings_promise(
    overlay: str, served: settings.Settings
) -> None:
    shm = volumes(overlay)["shm"]["emptyDir"]
    assert shm["medium"] == "Memory"
    assert bytes_of(shm["sizeLimit"]) == memory_plan.shm_bytes(served.tiers.shm_bytes)
    limits = server(overlay)["resources"]["limits"]
    in_memory = served.tiers.host_bytes + bytes_of(shm["sizeLimit"])
    # The rest is for Python, CUDA, and a model on its way to the GPU.
    assert bytes_of(limits["memory"]) - in_memory >= 2 * MODEL.weight_bytes()
    on_disk = [v["emptyDir"] for v in volumes(overlay).values() if "emptyDir" in v]
    sizes = [bytes_of(one["sizeLimit"]) for one in on_disk if one.get("medium") != "Memory"]
    assert sum(sizes) <= bytes_of(limits["ephemeral-storage"])
    gpus = int(limits["nvidia.com/gpu"])
    assert gpus == served.engine["tensor_parallel_size"]


@each_overlay
def test_probes_ask_what_the_server_answers(overlay: str) -> None:
    found = server(overlay)
    model = found["readinessProbe"]["httpGet"]["path"].split("/")
    assert (model[2], model[4]) == ("models", "ready")
    assert (ROOT / "model_repository" / model[3] / "config.pbtxt").is_file()
    assert found["startupProbe"]["httpGet"]["path"] == "/v2/health/ready"
    known = {f"--{name.replace('_', '-')}" for name in signature(health).parameters}
    for command in commands(found):
        words = command.split()
        start = words.index("health")
        assert words[start - 3 : start] == ["python3", "-m", "tools"]
        assert {word.split("=")[0] for word in words[start + 1 :]} <= known


def commands(found: dict[str, Any]) -> Iterator[str]:
    yield " ".join(found["livenessProbe"]["exec"]["command"])
    yield found["lifecycle"]["preStop"]["exec"]["command"][-1]


@each_overlay
def test_a_pod_has_the_time_its_drain_takes(overlay: str) -> None:
    (_, drain) = commands(server(overlay))
    sleep, wait = map(int, re.findall(r"sleep (\d+);.*--idle-within=(\d+)", drain)[0])
    grace = pod(overlay)["terminationGracePeriodSeconds"]
    assert sleep + wait + EXIT_TIMEOUT_S < grace
