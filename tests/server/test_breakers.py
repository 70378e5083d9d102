"""What open breakers do, on a server of its own whose thresholds are low."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.server import harness
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Refused, sampling
from tests.server.test_signals import samples, value, wait

#: Every load is too slow, and two switches in 10 s are too many.
BREAKERS = {
    "load_latency": {"warning": 0.000002, "open": 0.000003, "close": 0.000001},
    "switch_rate": {"warning": 0.1, "open": 0.2, "close": 0.05, "hold_s": 2},
}
OPEN, CLOSED = 2, 0


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("breakers")
    harness.make_demo(folder / "demo", markers=16)
    path = folder / "demo" / "serving.yaml"
    settings: dict[str, Any] = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**settings, "breakers": BREAKERS}))
    with harness.running(folder / "demo", folder / "state") as server:
        yield server


def ask(client: Client, lora_id: str) -> str:
    reply = client.infer_grpc(
        text_input="Hi", lora_id=lora_id, sampling_parameters=sampling(max_tokens=1)
    )
    return reply.text


def state(server: Server, signal: str) -> float:
    return value(samples(server), "lora_breaker_state", signal=signal)


def test_slow_loads_move_off_the_request_path_and_switching_is_seen(strict: Server) -> None:
    markers = list(strict.markers)
    client = strict.client
    for lora_id in markers[:10]:
        assert ask(client, lora_id) == f"Hi {strict.markers[lora_id]}"
    found = wait(
        strict, lambda now: value(now, "lora_breaker_state", signal="load_latency") == OPEN
    )
    assert value(found, "lora_load_latency_seconds") > 0.000003
    assert value(found, "lora_breaker_transitions_total", signal="load_latency", to="open") == 1
    assert value(found, "lora_switches_total") >= 2
    # Before anybody may probe, which is 5 s later.
    cold = markers[10]
    with pytest.raises(Refused) as refused:
        ask(client, cold)
    assert refused.value.code == "breaker_open", refused.value.message
    assert "load_latency" in refused.value.message
    assert "retry_after=1" in refused.value.message
    # Those that are there go on, and what was refused is there in a moment.
    assert ask(client, markers[9]) == f"Hi {strict.markers[markers[9]]}"
    deadline = time.monotonic() + 20
    while True:
        try:
            assert ask(client, cold) == f"Hi {strict.markers[cold]}"
            break
        except Refused as again:
            assert again.code == "breaker_open"
            assert time.monotonic() < deadline
            time.sleep(0.2)
    name = "lora_breaker_refusals_total"
    wait(strict, lambda now: value(now, name, signal="load_latency") >= 1)
    # Nothing switches any more: the rate falls, and stays low for long enough.
    found = wait(
        strict,
        lambda now: value(now, "lora_breaker_state", signal="switch_rate") == CLOSED,
        limit_s=30,
    )
    transitions = "lora_breaker_transitions_total"
    for to in ("open", "half_open", "closed"):
        assert value(found, transitions, signal="switch_rate", to=to) >= 1
    assert state(strict, "routing") == CLOSED
