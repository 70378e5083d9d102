"""What ``audit verify`` can find, and how bad it is."""

from __future__ import annotations

import dataclasses
import enum


class Kind(enum.IntEnum):
    """How bad a finding is; the largest gives the exit code of ``audit verify``."""

    #: Explained by how the system works; nothing to do.
    NOTE = 0
    #: Somebody with access to the files has changed them.
    TAMPERED = 1
    #: Nothing was changed, but something is not told: a look is worth while.
    GAP = 2


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing found, in the file ``file`` at line ``line`` (from 1; 0 for the whole file)."""

    kind: Kind
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.kind.name.lower()}: {where}: {self.text}"


@dataclasses.dataclass
class Verdict:
    """The result of a verification: what was found, and how much was looked at."""

    findings: list[Finding] = dataclasses.field(default_factory=list)
    files: int = 0
    lines: int = 0
    decisions: int = 0
    allowed: int = 0
    completions: int = 0
    cancels: int = 0
    engine_refusals: int = 0
    #: Allowed decisions whose deadline has not passed and which have no completion yet.
    under_way: int = 0

    def add(self, kind: Kind, file: str, line: int, text: str) -> None:
        """Notes a finding."""
        self.findings.append(Finding(kind, file, line, text))

    @property
    def exit_code(self) -> int:
        """0 whole, 1 tampered with, 2 gaps only."""
        kinds = {finding.kind for finding in self.findings}
        return next((int(k) for k in (Kind.TAMPERED, Kind.GAP) if k in kinds), 0)
