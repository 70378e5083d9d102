"""What the audit says, in numbers."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from python_backend.audit import retention

#: The columns of every table.
COLUMNS = ("department", "what", "calls", "refused", "failed", "input_tokens", "output_tokens")
_TOP = 20


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Every readable line, file after file; broken ones are ``verify``'s business."""
    for path in retention.files(folder):
        with path.open("rb") as file:
            for raw in file:
                try:
                    record = json.loads(raw)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield record


def summarise(
    lines: Iterable[dict[str, Any]], *, since_s: float = 0.0
) -> dict[str, list[dict[str, Any]]]:
    """Tables of rows: ``adapters`` (calls by department and what was served) and ``refusals``.

    Args:
        since_s: lines before this moment (Unix seconds) do not count.
    """
    served: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    refusals: Counter[tuple[str, str]] = Counter()
    for line in lines:
        if float(line.get("at", 0)) < since_s:
            continue
        department, event = str(line.get("department") or "-"), line.get("event")
        if event == "decision" and not line.get("allowed"):
            why = str(line.get("reason") or line.get("code"))
            refusals[department, f"{line.get('code')}: {why}"] += 1
            served[department, "(refused by the gate)"]["refused"] += 1
        elif event == "engine_refusal":
            refusals["-", f"{line.get('outcome')}: {line.get('reason')} (at the engine)"] += 1
        elif event == "completion":
            what = str(line.get("served") or f"({line.get('outcome')})")
            counter = served[department, what]
            counter["calls"] += 1
            counter["failed"] += line.get("outcome") != "ok"
            for kind in ("input_tokens", "output_tokens"):
                counter[kind] += int(line.get(kind) or 0)
    rows = [_row(department, what, count) for (department, what), count in sorted(served.items())]
    return {
        "adapters": rows,
        "refusals": [
            _row(department, what, Counter(refused=count))
            for (department, what), count in refusals.most_common(_TOP)
        ],
    }


def _row(department: str, what: str, count: Counter[str]) -> dict[str, Any]:
    return {"department": department, "what": what, **{c: count[c] for c in COLUMNS[2:]}}
