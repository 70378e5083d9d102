"""What a metrics page says, as figures. Pure: text and times go in."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

STATES = ("closed", "warning", "open", "half-open")
_LINE = re.compile(r"^(lora_\w+|vllm:\w+)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclasses.dataclass(frozen=True)
class Page:
    """One look at a server. ``at_s``: monotonic, seconds."""

    at_s: float
    samples: tuple[Sample, ...]

    @classmethod
    def parse(cls, text: str, at_s: float) -> Page:
        """The samples of ours in ``text``; lines that are not understood are passed over."""
        return cls(at_s, tuple(_samples(text.splitlines())))

    def by(self, name: str, label: str, **wanted: str) -> dict[str, float]:
        """Values by a label, the rest summed."""
        found: dict[str, float] = {}
        for sample in self._named(name, wanted):
            key = sample.labels.get(label, "")
            found[key] = found.get(key, 0.0) + sample.value
        return found

    def one(self, name: str, **wanted: str) -> float | None:
        """The sum of the samples; None where there is none."""
        values = [sample.value for sample in self._named(name, wanted)]
        return sum(values) if values else None

    def _named(self, name: str, wanted: Mapping[str, str]) -> Iterator[Sample]:
        for sample in self.samples:
            if sample.name == name and wanted.items() <= sample.labels.items():
                yield sample


def _samples(lines: Iterable[str]) -> Iterator[Sample]:
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        labels = {
            name: _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else str(m[1]), value)
            for name, value in _LABEL.findall(found[2] or "")
        }
        try:
            value = float(found[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield Sample(found[1], labels, value)


def figures(now: Page, before: Page | None = None) -> dict[str, Any]:
    """What ``top`` shows, ready for JSON. Rates need a look ``before``; without one they are None.

    A counter that has fallen belongs to a new server: its rate is counted from 0.
    """

    def rates(name: str, label: str, **wanted: str) -> dict[str, float | None]:
        new = now.by(name, label, **wanted)
        if before is None or now.at_s <= before.at_s:
            return dict.fromkeys(new)
        old = before.by(name, label, **wanted)
        passed = now.at_s - before.at_s
        gained = {k: v - old.get(k, 0.0) if v >= old.get(k, 0.0) else v for k, v in new.items()}
        return {key: round(gain / passed, 3) for key, gain in gained.items()}

    waiting = now.by("lora_queue_depth", "department")
    running = now.by("lora_requests_in_engine", "department")
    all_requests = now.by("lora_requests_total", "department")
    fine = now.by("lora_requests_total", "department", outcome="ok")
    written = rates("lora_tokens_total", "department", kind="out")
    asked = rates("lora_requests_total", "department")
    departments = {
        name: {
            "waiting": waiting.get(name, 0.0),
            "running": running.get(name, 0.0),
            "requests": all_requests.get(name, 0.0),
            "not_ok": all_requests.get(name, 0.0) - fine.get(name, 0.0),
            "requests_per_s": asked.get(name),
            "tokens_per_s": written.get(name),
        }
        for name in sorted({*waiting, *running, *all_requests})
    }
    states = now.by("lora_breaker_state", "signal")
    fragments = now.by("lora_memory_fragmentation_ratio", "pool")
    signal_values: dict[str, float | None] = {
        "switch_rate": now.one("lora_switch_rate"),
        "fragmentation": max((v for p, v in fragments.items() if p != "heap"), default=None),
        "load_latency": now.one("lora_load_latency_seconds"),
        "routing": now.one("lora_route_error_ratio"),
    }
    refused = now.by("lora_breaker_refusals_total", "signal")
    busiest = sorted(now.by("lora_adapter_requests_total", "lora_id").items(), key=lambda i: -i[1])
    return {
        "departments": departments,
        "adapters": now.by("lora_adapters", "state"),
        "tiers": now.by("lora_resident_adapters", "tier"),
        "busiest": dict(busiest[:10]),
        "signals": {
            name: {
                "value": value,
                "state": STATES[int(states[name])] if name in states else None,
                "refused": refused.get(name, 0.0),
            }
            for name, value in signal_values.items()
        },
        "fragmentation": fragments,
        "switch_time_ratio": now.one("lora_switch_time_ratio"),
        "gate": now.by("lora_gate_decisions_total", "reason"),
        "policy_error": bool(now.one("lora_policy_error")),
    }
