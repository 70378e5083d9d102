"""What docs/kubernetes.md shows works."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.contract.test_observability import FAMILIES
from tests.deploy import schemas
from tests.deploy.kustomize import KUBERNETES, OVERLAYS, ROOT, tool

PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)


def test_a_folder_of_ones_own_is_built(tmp_path: Path) -> None:
    (tmp_path / "lora-serving" / "deploy").mkdir(parents=True)
    shutil.copytree(KUBERNETES, tmp_path / "lora-serving" / "deploy" / "kubernetes")
    own = tmp_path / "own"
    own.mkdir()
    (own / "kustomization.yaml").write_text(BLOCKS[0])
    (own / "serving.yaml").write_text("ours: true\n")
    (own / "policy.yaml").write_text("ours: too\n")
    done = subprocess.run(
        [tool("kubectl"), "kustomize", str(own)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    things = list(yaml.safe_load_all(done.stdout))
    (config,) = (thing for thing in things if thing["kind"] == "ConfigMap")
    assert config["data"] == {"serving.yaml": "ours: true\n", "policy.yaml": "ours: too\n"}
    assert f"name: {config['metadata']['name']}" in done.stdout.split("kind: Deployment")[1]
    images = set(re.findall(r"image: (\S+)", done.stdout))
    assert images == {"registry.acme.example/lora:7"}


def test_the_route_fits_its_schema() -> None:
    assert schemas.problems(yaml.safe_load(BLOCKS[1])) == []


def test_every_overlay_is_in_the_table() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == ["plain", "finance", "openshift", "kserve"]
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == OVERLAYS


def test_every_metric_named_exists() -> None:
    named = set(re.findall(r"`(lora_[a-z_]+)(?:\{[^`]*)?`", PAGE)) - {"lora_id", "lora_infer"}
    assert named and named <= FAMILIES.keys()
