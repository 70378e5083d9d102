"""deploy/prometheus and deploy/grafana speak of metrics that exist, with the table's thresholds."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from python_backend import lora_metrics
from python_backend.admission import gauges
from python_backend.breaker_settings import BreakerSettings
from tests import debian

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
FAMILIES = {
    family.name: family
    for family in (
        *lora_metrics.ENGINE_FAMILIES,
        *lora_metrics.REQUEST_FAMILIES,
        *lora_metrics.GATE_FAMILIES,
        *gauges.FAMILIES,
    )
}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
LABELS = {label for family in FAMILIES.values() for label in family.labels} | {"model", "le"}


def check(expression: str) -> None:
    """Every metric in it exists, and so does every label it groups by."""
    bare = re.sub(r'"[^"]*"', "", expression)
    named = set(re.findall(r"\blora[_:][a-z0-9_:]+", bare))
    assert named, expression
    for name in named - RECORDED:
        base = re.sub(r"_bucket$", "", name)
        assert base in FAMILIES, name
        assert name.endswith("_bucket") is (FAMILIES[base].kind == "histogram"), name
        if FAMILIES[base].kind == "counter":
            assert re.search(rf"(rate|increase)\({name}", bare), f"{name} without a rate"
    for group in re.findall(r"by \(([^)]*)\)", bare):
        assert {label.strip() for label in group.split(",")} <= LABELS, expression


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_name_metrics_that_exist(rule: dict[str, Any]) -> None:
    if rule["expr"].startswith("up{"):
        return
    check(rule["expr"])


PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panels_name_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        check(target["expr"])
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert label in LABELS


def test_the_dashboard_is_laid_out() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == [
        "Is anyone being hurt?",
        "By whom?",
        "Which adapters live where?",
        "Is memory fragmenting?",
        "Is a breaker open?",
    ]


def test_the_alerts_have_the_tables_thresholds() -> None:
    table = BreakerSettings()
    found = {
        (rule["labels"]["signal"], rule["labels"]["severity"]): float(rule["expr"].split(">=")[1])
        for rule in RULES
        if "signal" in rule.get("labels", {})
    }
    assert found == {
        (signal, severity): getattr(getattr(table, signal), name)
        for signal in BreakerSettings.model_fields
        for severity, name in (("warning", "warning"), ("critical", "open"))
    }


@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", "rules.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [debian.program("prometheus", "promtool"), *command],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
