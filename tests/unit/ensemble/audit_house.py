"""A gate whose audit is a list."""

from __future__ import annotations

import dataclasses
from typing import Any

from ensemble.gate import Gate
from python_backend.audit import chain
from python_backend.audit.writer import AuditError
from python_backend.errors import ServingError
from python_backend.messages import RawRequest

FIN = RawRequest(credential=b"fin-key", text_input=b"my secret prompt", lora_id=b"fin_risk_v1")
NOW_S = 1_800_000_000.0


class Lines:
    """A writer into a list, which can be made to fail."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.broken = False

    def write(self, record: dict[str, Any]) -> None:
        if self.broken:
            raise AuditError("No space left on device")
        chain.seal(record, chain.GENESIS, bytes(32))  # it can be written
        self.lines.append(record)


@dataclasses.dataclass
class House:
    gate: Gate
    lines: Lines

    def decide(self, **changes: Any) -> dict[str, Any]:
        """The audit's line for a decision, whatever it is."""
        try:
            self.gate.decide(dataclasses.replace(FIN, **changes), now_s=100.0, now_ns=10**12)
        except ServingError as error:
            assert error.code == self.lines.lines[-1]["code"]
        return self.lines.lines[-1]
