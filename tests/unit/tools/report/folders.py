"""Made-up results folders, small enough to work out by hand what a report must say of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests import results
from tests.unit.loadtests import records
from tools.report.order import FAIR_QUEUE

GIB = 2**30
PROTECTIONS = {"access": True, FAIR_QUEUE: True, "breakers": True}


def request(t: float, **changed: Any) -> results.Request:
    """A good request of fin that is answered after 1 s, its first token after 0.25 s."""
    fields = {"department": "fin", "lora_id": "fin_risk_v1", "sent": t, "ttft": 0.25, "total": 1.0}
    return records.request(t, **{**fields, **changed})


def refused(t: float, outcome: str, **changed: Any) -> results.Request:
    """A request that is not answered."""
    nothing = {"served": None, "ttft": None, "gaps": (), "tokens": 0, "route": "unchecked"}
    return request(t, **{**nothing, "outcome": outcome, "total": 0.5, **changed})


def looks(*rows: tuple[float, float, dict[str, float] | None]) -> list[results.Sample]:
    """Samples of (t, GiB of the engine, metrics), with half a GiB beside the engine's."""
    return [
        records.sample(
            t=t, rss={"EngineCore": int(gib * GIB), "tritonserver": GIB // 2}, metrics=metrics
        )
        for t, gib, metrics in rows
    ]


def fault(t: float, healed: float | None, down: float | None) -> results.Fault:
    """The engine is killed."""
    return results.Fault(t=t, fault="kill_engine", target="EngineCore", healed=healed, down=down)


def run(**changed: Any) -> results.Run:
    """Ten seconds with every protection on, on a machine of 8 GiB."""
    fields: dict[str, Any] = {
        "scenario": "isolation",
        "configuration": "protected",
        "options": {},
        "started": "2026-11-30T12:00:00Z",
        "seconds": 10.0,
        "machine": {"cpus": 2, "memory_bytes": 8 * GIB, "gpu": None},
        "versions": {"vllm": "0.32.0"},
        "settings": {},
        "protections": PROTECTIONS,
        "trace": "a" * 64,
        "budget": [{"name": "errors", "measured": 0.5, "limit": 0.25, "ok": False, "samples": 8}],
        "ok": False,
    }
    return results.Run.model_validate({**fields, **changed})


UNPROTECTED = {
    "configuration": "unprotected",
    "protections": dict.fromkeys(PROTECTIONS, False),
}


def write(
    folder: Path,
    requests: Sequence[results.Request],
    samples: Sequence[results.Sample] = (),
    faults: Sequence[results.Fault] = (),
    **changed: Any,
) -> Path:
    """A results folder as a run leaves it."""
    folder.mkdir(parents=True)
    results.write_run(folder, run(**changed))
    results.write_lines(folder / results.REQUESTS, requests)
    if samples:
        results.write_lines(folder / results.SAMPLES, samples)
    if faults:
        results.write_lines(folder / results.FAULTS, faults)
    return folder
