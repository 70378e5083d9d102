"""The gate's decision on operators' commands: who asks, whether they may, and a ticket for it.

A gate like ``lora_gate``, in the process of ``lora_admin``: it reads the same policy and signs with
the same key, and the engine takes no command without such a ticket.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Callable

from ensemble.audit import GateAudit
from ensemble.enforcement import Trace
from ensemble.identity import identify
from ensemble.policy_source import PolicySource
from python_backend import runtime
from python_backend.admin import commands
from python_backend.admin.commands import Command
from python_backend.audit.writer import Writer, open_writer
from python_backend.errors import Internal, ServingError, Unauthenticated
from python_backend.messages import Decision, RawRequest
from python_backend.settings import Settings
from python_backend.ticket import (
    CANCEL_PROMPT,
    ENGINE_AUDIENCE,
    USE_WITHIN_S,
    Ticket,
    boottime_ns,
    sha256_hex,
    sign,
)

log = logging.getLogger(__name__)

#: A caller without the role. Not `not_found`: that is about adapters, and whoever took the wrong
#: key has to see that it is the key.
_NOT_ADMIN = "this needs a key with the role admin."


class AdminGate:
    """Decides on commands. Thread-safe. The role counts whatever ``access.control`` says.

    Args:
        key: the server's ticket key.
        audit: hears of every decision before it takes effect.
        wall_clock: Unix seconds, by which keys and tokens expire.
    """

    def __init__(
        self,
        policy_source: PolicySource,
        key: bytes,
        boot_id: str,
        *,
        audit: GateAudit,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._policy_source, self._key, self._boot_id = policy_source, key, boot_id
        self._audit, self._wall_clock = audit, wall_clock

    def decide(
        self, raw: RawRequest, command: Callable[[], bytes], *, now_s: float, now_ns: int
    ) -> Decision:
        """The decision on a command; its ``request`` is the canonical command, its prompt empty.

        Args:
            command: reads the command's JSON; not called before the caller is known.
            now_s: a monotonic clock, seconds.
            now_ns: CLOCK_BOOTTIME, nanoseconds.

        Raises:
            Unauthenticated, InvalidArgument: in this order of what is looked at. Unavailable where
                the decision cannot be audited.
        """
        trace = Trace()
        try:
            decision = self._decide(raw, command, trace, now_s=now_s, now_ns=now_ns)
        except ServingError as error:
            self._audit.decided(raw, trace, error)
            raise
        except Exception:
            internal = Internal()
            log.exception("error id %s", internal.error_id)
            self._audit.decided(raw, trace, internal)
            raise internal from None
        self._audit.decided(raw, trace, None)
        return decision

    def _decide(
        self,
        raw: RawRequest,
        read: Callable[[], bytes],
        trace: Trace,
        *,
        now_s: float,
        now_ns: int,
    ) -> Decision:
        policy = self._policy_source.current(now_s)
        trace.identity = identify(raw, policy, self._wall_clock())
        principal = trace.identity.principal
        command = commands.parse(read())
        names = (command.lora_id, command.alias, command.job, command.breaker)
        trace.asked = [name for name in names if name]
        trace.resolved = f"admin:{command.op}"
        admin = "admin" in principal.roles
        caller = "caller" in principal.roles
        if not admin and not (caller and command.op in commands.FOR_CALLERS):
            error = Unauthenticated(_NOT_ADMIN)
            error.reason = "not_admin"
            raise error
        request = self._completed(command, admin=admin).to_json()
        trace.prompt_sha256 = sha256_hex(CANCEL_PROMPT.encode())
        trace.deadline_s = USE_WITHIN_S
        trace.uid = secrets.token_hex(16)
        # The whole of it, beside the decision's own line, which has no place for all fields.
        fields = {name: str(value) for name, value in dataclasses.asdict(command).items() if value}
        self._audit.event("admin_command", uid=trace.uid, **fields)
        ticket = Ticket(
            boot_id=self._boot_id,
            audience=ENGINE_AUDIENCE,
            operation="admin",
            uid=trace.uid,
            department=principal.department,
            principal=principal.name,
            parts=(),
            prompt_sha256=trace.prompt_sha256,
            request_sha256=sha256_hex(request.encode("utf-8")),
            deadline_ns=now_ns + int(USE_WITHIN_S * 1e9),
            expires_ns=now_ns + int(USE_WITHIN_S * 1e9),
        )
        return Decision(CANCEL_PROMPT, request, sign(ticket, self._key), "")

    def _completed(self, command: Command, *, admin: bool) -> Command:
        """With what only a gate knows."""
        policy_error = (self._policy_source.error or "") if command.op == "status" else ""
        return dataclasses.replace(command, by_admin=admin, policy_error=policy_error)


class AdminServer:
    """The admin gate with all it needs, from start to end.

    Args:
        boot_id: this server's boot id.
        name: the model's name, which its audit files begin with.

    Raises:
        PolicyError, RuntimeDirError, AuditError: what is wrong, and where.
    """

    def __init__(self, config: Settings, boot_id: str, name: str) -> None:
        self._writer: Writer | None = open_writer(config.audit_dir, name, config.audit)
        self._audit = GateAudit(self._writer, config.access.control)
        try:
            policy = PolicySource(config.policy, on_error=log.error)
            key = runtime.ticket_key(config.run_dir)
            self._gate = AdminGate(policy, key, boot_id, audit=self._audit)
        except BaseException:
            self.close()
            raise

    def decide(self, read: Callable[[], RawRequest], command: Callable[[], bytes]) -> Decision:
        """The decision on the request that ``read`` reads (see ``AdminGate.decide``).

        Raises:
            ServingError: the refusal, of the reader or of the gate; both are audited.
        """
        raw = self._audit.reading(read)
        return self._gate.decide(raw, command, now_s=time.monotonic(), now_ns=boottime_ns())

    def close(self) -> None:
        """Ends the audit file. Callable more than once."""
        if self._writer is not None:
            self._writer.close()
