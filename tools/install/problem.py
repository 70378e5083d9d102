"""How set-up says what went wrong."""

from __future__ import annotations


class SetupProblem(Exception):
    """Set-up cannot go on.

    Args:
        step: what was being done.
        reason: what stopped it; may have several lines.
        cure: what the reader does about it.
    """

    def __init__(self, step: str, reason: str, cure: str) -> None:
        super().__init__(step, reason, cure)
        self.step = step
        self.reason = reason
        self.cure = cure

    def __str__(self) -> str:
        return f"set-up failed at: {self.step}\nreason: {self.reason}\ncure: {self.cure}"
