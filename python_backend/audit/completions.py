"""The engine's audit: how calls ended, written beside the engine's loop and not on it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Any

from python_backend.audit.chain import safe_text
from python_backend.audit.writer import AuditError, Writer, open_writer
from python_backend.completion import Completion
from python_backend.errors import Unavailable
from python_backend.settings import Settings

log = logging.getLogger(__name__)

NOT_AUDITED = "the request cannot be audited."
RETRY_S = 5
#: Lines that wait to be written, at most; beyond, calls are refused or lines dropped (and counted).
MAX_WAITING = 100_000
#: Lines a second for calls without a ticket.
STRANGERS_PER_S = 20


def record_of(completion: Completion) -> dict[str, Any]:
    """The audit's line for a call's end. No text of prompt or answer is in it."""
    record: dict[str, Any] = {
        "event": completion.event,
        "outcome": completion.outcome,
        "reason": safe_text(completion.reason),
    }
    ticket = completion.ticket
    if ticket is None:
        return record
    record |= {"uid": ticket.uid, "department": ticket.department, "principal": ticket.principal}
    if ticket.operation == "cancel":
        return record
    ttft_s = completion.ttft_s
    return record | {
        "served": completion.served,
        "finish_reasons": list(completion.finish_reasons),
        "input_tokens": completion.input_tokens,
        "output_tokens": completion.output_tokens,
        "latency_ms": round(completion.latency_s * 1e3, 3),
        "ttft_ms": None if ttft_s is None else round(ttft_s * 1e3, 3),
    }


class AuditSink:
    """A ``CompletionSink`` that writes. ``close`` writes what waits and closes the writer.

    Args:
        strict: whether calls are refused while the audit cannot be written.
    """

    def __init__(self, writer: Writer, *, strict: bool) -> None:
        self._writer, self._strict = writer, strict
        self._queue: queue.SimpleQueue[Completion | None] = queue.SimpleQueue()
        #: Lines that were lost since the start.
        self.lost = 0
        self._broken = False
        #: Refused calls without a ticket and without a line; the next such line has the count.
        self.withheld = 0
        self._second, self._strangers = 0, 0
        self._thread = threading.Thread(target=self._run, name="completions", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises ``Unavailable`` in strict mode while ends of calls cannot be written."""
        if not self._strict:
            return
        if self._broken:
            # A line of its own tells whether the trouble is over: no call has to be the test.
            try:
                self._writer.write({"event": "recovered", "lost": self.lost})
            except AuditError:
                raise Unavailable(NOT_AUDITED, retry_after=RETRY_S) from None
            self._broken = False
        if self._queue.qsize() >= MAX_WAITING:
            raise Unavailable(NOT_AUDITED, retry_after=RETRY_S)

    def record(self, completion: Completion) -> None:
        """Queues the line.

        Whoever has no ticket is nobody: such calls get a few lines a second and a count, or a flood
        of them would push everybody else's lines out of the files and the queue.
        """
        if completion.ticket is None and not self._has_room_for_a_stranger():
            self.withheld += 1
            return
        if self._queue.qsize() >= MAX_WAITING and not self._strict:
            self.lost += 1
            return
        self._queue.put(completion)

    def _has_room_for_a_stranger(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._strangers = second, 0
        self._strangers += 1
        return self._strangers <= STRANGERS_PER_S

    def _record_of(self, completion: Completion) -> dict[str, Any]:
        record = record_of(completion)
        if completion.ticket is None:
            withheld, self.withheld = self.withheld, 0
            record["withheld"] = withheld
        return record

    def _run(self) -> None:
        while (completion := self._queue.get()) is not None:
            try:
                self._writer.write(self._record_of(completion))
            except AuditError as error:
                first, self._broken = not self._broken, True
                self.lost += 1
                if first:
                    log.error("the audit cannot be written: %s", error)
            except Exception:
                self.lost += 1
                log.exception("a line of the audit could not be made")

    def close(self) -> None:
        """Callable more than once."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._writer.close()


def open_sink(config: Settings, name: str) -> AuditSink | None:
    """The sink of the model ``name``; None if the audit is switched off. Raises as the writer."""
    writer = open_writer(config.audit_dir, name, config.audit)
    return None if writer is None else AuditSink(writer, strict=config.access.control == "strict")
