"""A gate's whole decision: identity, access, route, ticket, audit; and that its cost is constant.

A small house (10 principals, 10 adapters) is measured beside a large one (10,000 and 1,000).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from ensemble.audit import GateAudit
from ensemble.gate import Gate
from ensemble.policy_source import PolicySource
from python_backend import runtime
from python_backend.access_settings import AuditSettings
from python_backend.adapters.catalog import Entry, Snapshot, SnapshotReader, State, publish
from python_backend.audit.writer import Writer
from python_backend.errors import ServingError
from python_backend.messages import RawRequest
from python_backend.settings import Settings
from tools.bench.scenario import Options, Result, measure

#: What is promised, and how far the large house may lie above the small one.
P50_BOUND_US, GROWTH_BOUND = 150.0, 1.25
_BOOT_ID, _KEY = "b" * 32, bytes(range(32))
_DEPARTMENTS = 10
_NOW_S, _NOW_NS = 100.0, 10**15


def _name(number: int) -> str:
    return f"dep{number % _DEPARTMENTS}_task{number}_v1"


def _key(number: int) -> str:
    return f"key-{number}"


def _policy(principals: int) -> dict[str, object]:
    return {
        "version": 1,
        "departments": {
            f"dep{n}": {"adapters": [f"dep{n}_*"], "base": True} for n in range(_DEPARTMENTS)
        },
        "principals": [
            {
                "name": f"app{n}",
                "department": f"dep{n % _DEPARTMENTS}",
                "api_key_sha256": hashlib.sha256(_key(n).encode()).hexdigest(),
            }
            for n in range(principals)
        ],
    }


def _gate(folder: Path, principals: int, adapters: int, writer: Writer) -> Gate:
    folder.mkdir()
    policy = folder / "policy.yaml"
    policy.write_text(yaml.safe_dump(_policy(principals)))
    settings = Settings.model_validate(
        {"adapters": {"root": folder}, "policy": policy, "state_dir": folder / "state"}
    )
    settings.run_dir.mkdir(parents=True)
    entries = {_name(n): Entry(_name(n), State.READY, "d" * 64, rank=8) for n in range(adapters)}
    start = runtime.process_start(os.getpid()) or ""
    publish(settings.run_dir, Snapshot(_BOOT_ID, 1, os.getpid(), start, str(folder), 4096, entries))
    return Gate(
        settings,
        PolicySource(policy),
        SnapshotReader(settings.run_dir, _BOOT_ID),
        _KEY,
        _BOOT_ID,
        audit=GateAudit(writer, "strict"),
    )


def _calls(
    gate: Gate, principals: int, adapters: int, *, foreign: bool = False
) -> Iterator[Callable[[], object]]:
    """Decisions of one principal after the other, on adapters that are theirs (or are not)."""
    for number in itertools.count():
        who = number * 7919 % principals
        # Both are numbered by department in turn, so equal remainders belong together.
        which = (number * 104729 // _DEPARTMENTS * _DEPARTMENTS + who + foreign) % adapters
        raw = RawRequest(
            text_input=b"What is the risk of this loan?",
            lora_id=_name(which).encode(),
            parameters={"authorization": f"Bearer {_key(who)}", "max_tokens": 64},
        )
        yield lambda raw=raw: _decide(gate, raw, refused=foreign)  # type: ignore[misc]


def _decide(gate: Gate, raw: RawRequest, *, refused: bool) -> None:
    try:
        gate.decide(raw, now_s=_NOW_S, now_ns=_NOW_NS)
    except ServingError as error:
        if not refused or error.code != "not_found":
            raise
    else:
        if refused:
            raise AssertionError("a foreign adapter was allowed")


def run(options: Options) -> Result:
    """Measures both houses, and refusals in the large one."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        writer = Writer(root / "audit", "bench", _KEY, AuditSettings(sync="interval"))
        try:
            small = _gate(root / "small", 10, 10, writer)
            large = _gate(root / "large", 10_000, 1_000, writer)
            cases = (
                measure("10 principals, 10 adapters", _calls(small, 10, 10), options),
                measure("10,000 principals, 1,000 adapters", _calls(large, 10_000, 1_000), options),
                measure("the same, refused", _calls(large, 10_000, 1_000, foreign=True), options),
            )
        finally:
            writer.close()
    growth = cases[1].p50_us / cases[0].p50_us
    return Result(
        "gate",
        cases,
        {
            f"p50 at most {P50_BOUND_US:g} µs": cases[1].p50_us <= P50_BOUND_US,
            f"p50 grows by at most {GROWTH_BOUND:g} times": growth <= GROWTH_BOUND,
        },
    )
