"""A server with room for two adapters: the rest comes and goes, and all answer as themselves."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.server import harness
from tests.server.admin_tools import ended, listed, says
from tests.server.harness import SHM, Server


def tier_metrics(server: Server) -> dict[tuple[str, ...], float]:
    """``lora_tier_bytes`` by tier and kind."""
    text = server.metrics_text()
    return {
        (sample.labels["tier"], sample.labels["kind"]): sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "lora_tier_bytes"
        for sample in family.samples
    }


def test_two_of_eight(demo: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(demo, tmp_path / "demo"))
    markers = sorted(path.name for path in (own / "adapters").glob("mark_*"))[:5]
    size = (own / "adapters" / markers[0] / "adapter_model.safetensors").stat().st_size
    with (own / "serving.yaml").open("a", encoding="utf-8") as file:
        file.write(
            f"\ntiers: {{host_bytes: {2 * size}, shm_bytes: 1000000, "
            f"warm: [{markers[0]}, fin_gone_v1]}}\n"
        )
    before = set(SHM.glob("lora-tier-*"))
    with harness.running(own, tmp_path / "state") as server:
        client = server.client

        def tiers(name: str) -> list[str]:
            found: list[str] = listed(client)[name]["tiers"]
            return found

        # Ready means warm, and a name that is not there holds up no start.
        assert tiers(markers[0]) == ["host", "disk"]
        log = server.log.read_text(errors="replace")
        assert "tiers.warm names what cannot be served: fin_gone_v1" in log
        assert "warmed 1 of 1 adapters" in log
        for _ in range(2):
            for name in markers:
                word, served = says(client, name)
                assert word == server.markers[name]
                assert served.startswith(f"{name}@")
        time.sleep(1.5)  # The engine is asked at most once a second.
        found = {name: tiers(name) for name in markers}
        assert sum("host" in there for there in found.values()) == 2, found
        assert sum("shm" in there for there in found.values()) >= 3, found
        (folder,) = set(SHM.glob("lora-tier-*")) - before
        sizes = tier_metrics(server)
        assert sizes["host", "used"] == sizes["host", "budget"] == 2 * size
        assert 0 < sizes["shm", "used"] <= sizes["shm", "budget"]
        gone = next(name for name, there in found.items() if "shm" in there)
        copies = set(folder.iterdir())
        assert ended(client, "remove", lora_id=gone)["state"] == "done"
        assert gone not in listed(client)
        assert len(copies - set(folder.iterdir())) == 1
    assert not folder.exists()
    # What was used often is known after a restart; what was removed is forgotten at the next look.
    heat = json.loads((tmp_path / "state" / "heat.json").read_text())
    assert {*markers} - {gone} <= heat["uses"].keys()
