"""deploy/kubernetes against the real schemas, and as it was when somebody last looked."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from tests.deploy import kustomize, schemas
from tests.deploy.kustomize import OVERLAYS, ROOT, built, named

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
#: The cluster's OpenAPI has these three without their keys: stated here by hand, from OpenShift's
#: documentation.
ROUTE = {
    "to": {"kind", "name", "weight"},
    "port": {"targetPort"},
    "tls": {
        *("termination", "insecureEdgeTerminationPolicy", "certificate", "key", "caCertificate"),
        *("destinationCACertificate", "externalCertificate"),
    },
}


@each_overlay
def test_it_fits_the_schemas(overlay: str) -> None:
    found = {
        f"{thing['kind']}/{thing['metadata']['name']}": schemas.problems(thing)
        for thing in built(overlay)
    }
    assert found
    assert {name: why for name, why in found.items() if why} == {}


@pytest.mark.parametrize(
    ("overlay", "kind", "path"),
    [
        ("plain", "Deployment", "spec.template.spec"),
        ("plain", "NetworkPolicy", "spec"),
        ("plain", "HorizontalPodAutoscaler", "spec.scaleTargetRef"),
        ("plain", "PodMonitor", "spec.podMetricsEndpoints.0"),
        ("plain", "PrometheusRule", "spec.groups.0.rules.0"),
        ("finance", "ScaledObject", "spec.triggers.0"),
        ("openshift", "Route", "spec"),
        ("openshift", "TriggerAuthentication", "spec.secretTargetRef.0"),
        ("kserve", "ServingRuntime", "spec.containers.0.lifecycle.preStop"),
        ("kserve", "InferenceService", "spec.predictor.model"),
    ],
)
def test_the_schemas_would_find_a_wrong_key(overlay: str, kind: str, path: str) -> None:
    thing = copy.deepcopy(next(thing for thing in built(overlay) if thing["kind"] == kind))
    place: Any = thing
    for step in path.split("."):
        place = place[int(step)] if step.isdigit() else place[step]
    place["unheardOf"] = 1
    assert any("unheardOf" in problem for problem in schemas.problems(thing))


@each_overlay
def test_golden(overlay: str) -> None:
    golden = kustomize.GOLDEN / f"{overlay}.txt"
    assert kustomize.summary(overlay) == golden.read_text("utf-8"), (
        "meant so? python -m tests.deploy.regenerate"
    )


def test_the_rules_are_those_of_prometheus() -> None:
    assert kustomize.RULES.read_text("utf-8") == kustomize.prometheus_rule(), (
        "python -m tests.deploy.regenerate"
    )
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text("utf-8"))
    assert named("plain", "PrometheusRule")["spec"] == rules


def test_the_routes_lead_to_the_public_doors_alone() -> None:
    routes = [thing["spec"] for thing in built("openshift") if thing["kind"] == "Route"]
    doors = {"lora_generate", "lora_stream", "lora_infer", "adapter_fusion"}
    assert {route["path"] for route in routes} == {f"/v2/models/{door}/" for door in doors}
    assert {route["tls"]["insecureEdgeTerminationPolicy"] for route in routes} == {"None"}
    for route in routes:
        assert all(set(route[key]) <= known for key, known in ROUTE.items())
        assert route["to"]["kind"] == "Service" and route["tls"]["termination"] == "edge"
        assert ("Service", route["to"]["name"]) in {
            (thing["kind"], thing["metadata"]["name"]) for thing in built("openshift")
        }
