"""What the autoscalers ask Prometheus."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import debian
from tests.contract.test_observability import check
from tests.deploy.kustomize import KUBERNETES, OVERLAYS, built, named


def queries() -> dict[str, str]:
    """Every query that scaling asks, by where it stands."""
    found = {}
    for overlay in OVERLAYS:
        for thing in built(overlay):
            if thing["kind"] == "ScaledObject":
                for trigger in thing["spec"]["triggers"]:
                    found[f"{overlay} {trigger['name']}"] = trigger["metadata"]["query"]
    rules = yaml.safe_load((KUBERNETES / "components" / "hpa" / "adapter-rules.yaml").read_text())
    for rule in [*rules["rules"]["custom"], *rules["rules"]["external"]]:
        series, selector = re.fullmatch(r"(\w+)\{(.*)\}", rule["seriesQuery"]).groups()  # type: ignore[union-attr]
        query = rule["metricsQuery"].replace("<<.Series>>", series)
        query = query.replace("<<.LabelMatchers>>", selector).replace("<<.GroupBy>>", "pod")
        found[rule["name"]["as"]] = query
    return found


def test_scaling_asks_for_metrics_that_exist(tmp_path: Path) -> None:
    asked = queries()
    for query in asked.values():
        check(re.sub(r"by \(pod\)", "", query))
    wanted = {
        next(iter(metric.values()))["metric"]["name"]
        for metric in [
            {key: value for key, value in one.items() if key != "type"}
            for one in named("plain", "HorizontalPodAutoscaler")["spec"]["metrics"]
        ]
    }
    assert wanted <= asked.keys()
    rules = [{"record": f"q:{i}", "expr": query} for i, query in enumerate(asked.values())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    promtool = debian.program("prometheus", "promtool")
    done = subprocess.run(
        [str(promtool), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_scaling_looks_at_its_own_namespace(overlay: str) -> None:
    namespace = named(overlay, "PodMonitor")["metadata"]["namespace"]
    for thing in built(overlay):
        if thing["kind"] == "ScaledObject":
            for trigger in thing["spec"]["triggers"]:
                query = trigger["metadata"]["query"]
                assert re.findall(r'namespace="([^"]+)"', query) == [namespace]
