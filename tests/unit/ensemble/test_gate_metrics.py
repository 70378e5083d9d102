"""What a gate counts, and that a broken policy file shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ensemble.gate_server import GateServer
from python_backend.errors import NotFound, Unauthenticated
from python_backend.messages import RawRequest
from python_backend.metrics import Family, MakeSeries, Metrics, Write
from python_backend.settings import load
from tests.unit.ensemble.conftest import BOOT_ID

Written = dict[tuple[str, ...], float]


class Recorder:
    """Counters add up, gauges are set."""

    def __init__(self) -> None:
        self.values: Written = {}

    def create(self, family: Family) -> MakeSeries:
        def series(labels: Mapping[str, str]) -> Write:
            key = (family.name, *(labels[name] for name in family.labels))

            def write(value: float) -> None:
                before = self.values.get(key, 0.0) if family.kind == "counter" else 0.0
                self.values[key] = before + value

            return write

        return series


def ask(server: GateServer, lora_id: bytes, key: bytes = b"fin-key") -> None:
    server.decide(lambda: RawRequest(credential=key, text_input=b"Hello", lora_id=lora_id))


def test_decisions_are_counted_by_code_and_never_by_name(config: Path) -> None:
    shown = Recorder()
    metrics = Metrics(shown, {"model": "lora_gate"})
    server = GateServer(load(config), BOOT_ID, "lora_gate", metrics)
    ask(server, b"fin_risk_v1")
    for number in range(50):
        with pytest.raises(NotFound):
            ask(server, b"no_such_v%d" % number)
    with pytest.raises(Unauthenticated):
        ask(server, b"fin_risk_v1", b"another key")
    server.close()
    assert shown.values == {
        ("lora_gate_decisions_total", "allowed", "policy"): 1,
        ("lora_gate_decisions_total", "refused", "not_found"): 50,
        ("lora_gate_decisions_total", "refused", "unauthenticated"): 1,
    }


def test_a_broken_policy_shows_until_it_is_mended_though_nobody_asks(
    config: Path, policy_path: Path
) -> None:
    recorder = Recorder()
    good = policy_path.read_text()
    server = GateServer(load(config), BOOT_ID, "lora_gate", Metrics(recorder, {}))
    try:
        for text, value in (("version: [", 1), (good + "\n# mended\n", 0)):
            policy_path.write_text(text)
            deadline = time.monotonic() + 10
            while recorder.values.get(("lora_policy_error",), 0) != value:
                assert time.monotonic() < deadline
                time.sleep(0.02)
    finally:
        server.close()
