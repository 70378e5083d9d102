"""Every allowed decision has an end at the engine, and every end had its decision."""

from __future__ import annotations

import dataclasses
from typing import Any

from tools.audit.findings import Kind, Verdict

#: How long after its deadline a request's end may be written, seconds: the longest a ticket lives
#: beyond it.
GRACE_S = 90.0
#: Findings of one sort that are listed one by one.
_LISTED = 20


@dataclasses.dataclass(frozen=True)
class _Decision:
    file: str
    line: int
    department: str
    ends_at: float


class Pairing:
    """Collects lines in any order, then judges."""

    def __init__(self) -> None:
        self._decisions: dict[str, _Decision] = {}
        self._ends: dict[str, tuple[str, int, str]] = {}
        self._cancels: set[str] = set()
        self._count = {"decision": 0, "completion": 0, "cancel": 0, "engine_refusal": 0}

    def add(self, file: str, line: int, record: dict[str, Any]) -> None:
        """Takes one line."""
        event, uid = record.get("event"), str(record.get("uid", ""))
        if event in self._count:
            self._count[event] += 1
        if event == "decision" and record.get("allowed"):
            ends_at = float(record["at"]) + float(record.get("deadline_s", 0))
            department = str(record.get("department"))
            self._decisions[uid] = _Decision(file, line, department, ends_at)
        elif event == "completion":
            self._ends[uid] = (file, line, str(record.get("department")))
        elif event == "cancel":
            self._cancels.add(uid)

    def finish(self, verdict: Verdict, now_s: float, *, pruned: bool) -> None:
        """Writes what does not fit into ``verdict``.

        Args:
            now_s: the wall clock, seconds.
            pruned: whether old files have been removed, and with them one half of some pairs.
        """
        verdict.decisions, verdict.allowed = self._count["decision"], len(self._decisions)
        verdict.completions, verdict.cancels = self._count["completion"], self._count["cancel"]
        verdict.engine_refusals = self._count["engine_refusal"]
        open_ended = [
            (uid, decision)
            for uid, decision in self._decisions.items()
            if uid not in self._ends and uid not in self._cancels
        ]
        late = [d for _, d in open_ended if d.ends_at + GRACE_S < now_s]
        verdict.under_way = len(open_ended) - len(late)
        for decision in late[:_LISTED]:
            verdict.add(
                Kind.GAP,
                decision.file,
                decision.line,
                "an allowed decision without a completion: the request never reached the engine, "
                "or the engine was killed",
            )
        strays = (
            [] if pruned else [(u, e) for u, e in self._ends.items() if u not in self._decisions]
        )
        for _, (file, line, _department) in strays[:_LISTED]:
            verdict.add(Kind.GAP, file, line, "a completion without a decision of the gate")
        for uid, (file, line, department) in self._ends.items():
            decided = self._decisions.get(uid)
            if decided is not None and decided.department != department:
                verdict.add(
                    Kind.GAP, file, line, f"completed for {department!r}, not as it was decided"
                )
        for count, what in ((len(late), "decisions"), (len(strays), "completions")):
            if count > _LISTED:
                verdict.add(Kind.GAP, "", 0, f"{count - _LISTED} more such {what}")
