"""The gate's audit: one line for each decision, allowed or not, before it takes effect."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ensemble.enforcement import Trace
from ensemble.router import asked
from python_backend.access_settings import Control
from python_backend.audit.chain import MAX_TEXT, safe_text
from python_backend.audit.completions import NOT_AUDITED, RETRY_S
from python_backend.audit.writer import AuditError
from python_backend.errors import ServingError, Unavailable
from python_backend.messages import RawRequest

log = logging.getLogger(__name__)


class LineWriter(Protocol):
    """Where lines go."""

    def write(self, record: dict[str, Any]) -> None:
        """Appends a line. Raises ``AuditError``."""


def record_of(
    raw: RawRequest, trace: Trace, error: ServingError | None, control: Control
) -> dict[str, Any]:
    """The line for a decision. Nothing of prompt or credential is in it but the prompt's sha256."""
    identity = trace.identity
    names = trace.asked if trace.asked is not None else [v for _, v in asked(raw, None)]
    record: dict[str, Any] = {
        "event": "decision",
        "allowed": error is None,
        "code": "" if error is None else error.code,
        "reason": "" if error is None else (error.reason or getattr(error, "error_id", "")),
        "department": "" if identity is None else identity.principal.department,
        "principal": "" if identity is None else identity.principal.name,
        "via": "" if identity is None else identity.via,
        # A name given in several places is given once; that several differ is shown.
        "lora_id": "|".join(dict.fromkeys(safe_text(name) for name in names[:4]))[:MAX_TEXT],
        "resolved": trace.resolved,
        "digests": [part.digest for part in trace.parts],
        "uid": trace.uid,
        "prompt_sha256": trace.prompt_sha256 or _raw_prompt_sha256(raw),
        "deadline_s": round(trace.deadline_s, 3),
    }
    if trace.mode:
        record["mode"] = trace.mode
    if control != "strict":
        record["control"] = control
        record["overlooked"] = trace.overlooked
    return record


def _raw_prompt_sha256(raw: RawRequest) -> str:
    """Of a prompt that was refused before it was understood: of its bytes as they came."""
    sent = raw.text_input if raw.text_input is not None else raw.messages
    return "" if sent is None else hashlib.sha256(sent).hexdigest()


class GateAudit:
    """Writes decisions. Thread-safe.

    Args:
        writer: None where the audit is switched off.
        control: in ``strict`` a request that cannot be audited is refused.
    """

    def __init__(self, writer: LineWriter | None, control: Control) -> None:
        self._writer, self._control = writer, control
        self._broken = False
        #: Lines that were lost since the start.
        self.lost = 0

    def decided(self, raw: RawRequest, trace: Trace, error: ServingError | None) -> None:
        """Writes the line of a decision; ``error`` is what the caller is refused with.

        Raises:
            Unavailable: it cannot be written, and control is strict.
        """
        if self._writer is None:
            return
        written = self._write(record_of(raw, trace, error, self._control))
        if not written and self._control == "strict":
            raise Unavailable(NOT_AUDITED, retry_after=RETRY_S) from None

    def reading(self, read: Callable[[], RawRequest]) -> RawRequest:
        """The request that ``read`` reads; what cannot be read is a refusal like any other.

        Raises:
            ServingError: the reader's refusal, audited.
        """
        try:
            return read()
        except ServingError as error:
            self.decided(RawRequest(), Trace(), error)
            raise

    def event(self, event: str, **fields: str) -> None:
        """Writes a line that is no decision, such as a policy that cannot be read. Never raises."""
        if self._writer is not None:
            texts = {name: safe_text(value) for name, value in fields.items()}
            self._write({"event": event, **texts})

    def _write(self, record: dict[str, Any]) -> bool:
        assert self._writer is not None  # noqa: S101 for mypy; both callers have looked
        try:
            self._writer.write(record)
        except AuditError as error:
            self.lost += 1
            if not self._broken:
                log.error("the audit cannot be written: %s", error)
            self._broken = True
            return False
        if self._broken:
            log.warning("the audit is written again; %d lines were lost", self.lost)
            self._broken = False
        return True
