"""A server with low thresholds, a disk that can be slow, and what is asked of its breakers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from python_backend.breaker_settings import BreakerSettings
from tests import debian
from tests.server import harness, second, test_prometheus
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Refused, sampling
from tests.server.slow_disk import SlowDisk
from tests.server.test_signals import Samples, samples, value, wait
from tools.__main__ import app

WEIGHTS = "adapter_model.safetensors"
#: A marker's copy takes three pages and leaves more than half of that empty: six of them lose a
#: fifth of this, nine of them 30 %.
SHM_BYTES = 200_000
RATION = BreakerSettings().switch_rate.close
SETTINGS: dict[str, Any] = {
    "observation": {"canary_s": 1},
    "breakers": {
        "load_latency": {"warning": 0.3, "open": 0.6, "close": 0.2},
        "switch_rate": {"hold_s": 2},
        "fragmentation": {"hold_s": 2},
    },
}
CLOSED, WARNING, OPEN, HALF_OPEN = range(4)
STATE = "lora_breaker_state"


class House:
    """The server, and what is slow in it."""

    def __init__(self, server: Server, disk: SlowDisk, api: httpx.Client | None) -> None:
        self.server, self.disk = server, disk
        #: Of a Prometheus that scrapes it, where one is installed.
        self.prometheus = api
        self.client: Client = server.client
        self.markers = list(server.markers)

    def ask(self, lora_id: str, **fields: Any) -> str:
        """The one word of the answer."""
        reply = self.client.infer_grpc(
            text_input="Hi",
            lora_id=lora_id,
            exclude_input_in_output=True,
            sampling_parameters=sampling(max_tokens=1),
            **fields,
        )
        return str(reply.text).strip()

    def right(self, lora_id: str, **fields: Any) -> None:
        assert self.ask(lora_id, **fields) == self.server.markers[lora_id]

    def refusal(self, lora_id: str, **fields: Any) -> Refused | None:
        """Why it was refused; None if it was answered."""
        try:
            self.ask(lora_id, **fields)
        except Refused as refused:
            return refused
        return None

    def state(self, signal: str, state: int, limit_s: float = 20.0) -> Samples:
        """The metrics once the breaker is in the state."""
        return wait(self.server, lambda now: value(now, STATE, signal=signal) == state, limit_s)

    def times(self, signal: str, to: str) -> float:
        found = samples(self.server)
        return value(found, "lora_breaker_transitions_total", signal=signal, to=to)

    def breakers(self, *words: str, who: str = "admin") -> str:
        """What ``tools admin breakers`` prints."""
        command = ["admin", "breakers", *words, "--url", f"http://{self.server.http}"]
        env = {"LORA_ADMIN_KEY": self.server.keys[who]}
        return CliRunner().invoke(app, command, env=env).output


@contextlib.contextmanager
def breaking_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server of its own, watched by a Prometheus where one is installed."""
    folder = tmp_path_factory.mktemp("breakers")
    harness.make_demo(folder / "demo", markers=20)
    path = folder / "demo" / "serving.yaml"
    settings: dict[str, Any] = yaml.safe_load(path.read_text())
    size = next((folder / "demo" / "adapters").glob(f"mark_*/{WEIGHTS}")).stat().st_size
    # Uses count for a moment only: who was used last stays.
    tiers = {"host_bytes": 4 * size, "shm_bytes": SHM_BYTES, "half_life_s": 0.1}
    path.write_text(yaml.safe_dump({**settings, **SETTINGS, "tiers": tiers}))
    with pytest.MonkeyPatch.context() as patch:
        version = second.copy_repository(folder / "models")
        disk = SlowDisk(tmp_path_factory.mktemp("slow"), version, patch)
        where = (folder / "demo", folder / "state", folder / "models")
        with second.running(*where) as (server, _):
            try:
                binary = debian.find("prometheus", "prometheus")
            except debian.UnavailableError:
                yield House(server, disk, None)
                return
            scraped = tmp_path_factory.mktemp("prometheus")
            with test_prometheus.scraping(binary, server, scraped) as api:
                yield House(server, disk, api)
