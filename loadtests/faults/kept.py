"""Whether what callers were told was kept: each answer they got, in the audit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadtests.faults.house import House, NotHere
from loadtests.results import Request, Verdict
from python_backend.audit.chain import FILE_SUFFIX

#: What the audit should know of an answer, and what is counted where it does not.
_NAMES = {
    "decision": "answers that the audit does not know",
    "completion": "answers whose end the audit does not know",
}


def kept(house: House, requests: Sequence[Request]) -> tuple[Verdict, ...]:
    """Answers without a decision in the audit (none may be) and, shown only, without an end.

    A server that is killed may have answered before it wrote how a call ended; that it let the call
    in was written before. Nothing is said where nothing is audited.
    """
    try:
        settings = house.settings
        if not settings.audit.enabled:
            return ()
        records = list(_records(house.seen_by_server(settings.audit_dir)))
    except (NotHere, OSError):
        records = []
    answered = {request.uid for request in requests if request.outcome == "ok"} - {None}
    found = []
    for event, name in _NAMES.items():
        known = {record.get("uid") for record in records if record.get("event") == event}
        lost = len(answered - known)
        # A limit is a promise: of ends there is none, while something is killed.
        limit = 0 if event == "decision" else len(answered)
        found.append(
            Verdict(name=name, measured=lost, limit=limit, ok=lost <= limit, samples=len(answered))
        )
    return tuple(found)


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    """Every whole line of every file; whether they are genuine is ``tools audit verify``'s."""
    for path in sorted(folder.glob(f"*{FILE_SUFFIX}")):
        for line in path.read_text("ascii", "replace").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # Torn by a kill.
