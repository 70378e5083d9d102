"""The gate: a caller's request becomes a signed decision, or an error."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Mapping

from ensemble import chat, fusing, sampling
from ensemble.access import Policy
from ensemble.audit import GateAudit
from ensemble.enforcement import Enforcement, Trace
from ensemble.identity import Identity, identify, nobody
from ensemble.modes import Asker, Modes
from ensemble.policy_source import PolicySource
from ensemble.router import asked, route
from python_backend.adapters.aliases import Chosen, Route
from python_backend.adapters.catalog import SnapshotReader
from python_backend.errors import Internal, InvalidArgument, ServingError, Unauthenticated
from python_backend.messages import Decision, EngineRequest, RawRequest
from python_backend.settings import Settings
from python_backend.ticket import (
    CANCEL_PROMPT,
    CANCEL_REQUEST,
    ENGINE_AUDIENCE,
    USE_WITHIN_S,
    Ticket,
    sha256_hex,
    sign,
)

__all__ = ["Gate", "PolicySource"]

log = logging.getLogger(__name__)

#: How long a cancel ticket outlives its request's deadline, nanoseconds.
_GRACE_NS = 30_000_000_000


class Gate:
    """Decides on requests. Thread-safe; holds no state of its own.

    Args:
        settings: limits, aliases and how strictly access is controlled.
        policy_source: who may use what.
        snapshots: which adapters there are.
        key: the server's ticket key.
        boot_id: this server's boot id.
        audit: hears of every decision before it takes effect.
        wall_clock: Unix seconds, by which keys and tokens expire.
    """

    def __init__(
        self,
        settings: Settings,
        policy_source: PolicySource,
        snapshots: SnapshotReader,
        key: bytes,
        boot_id: str,
        *,
        audit: GateAudit | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._audit = audit or GateAudit(None, settings.access.control)
        self._access = settings.access
        self._enforcement = Enforcement.of(settings.access, settings.aliases)
        self._seen: Mapping[str, Route] = settings.aliases
        self._wall_clock = wall_clock
        self._limits, self._fusion = settings.limits, settings.fusion
        self._modes = Modes(settings)
        self._policy_source = policy_source
        self._snapshots = snapshots
        self._key = key
        self._boot_id = boot_id

    def decide(
        self, raw: RawRequest, *, now_s: float, now_ns: int, cancellable: bool = True
    ) -> Decision:
        """The decision on ``raw``.

        The caller is identified before anything else is read, so that a stranger learns nothing
        and costs two hashes, of the credential and, for the audit, of the prompt.

        Args:
            now_s: a monotonic clock, seconds.
            now_ns: CLOCK_BOOTTIME, nanoseconds.
            cancellable: whether a cancel ticket is wanted; without, it is empty.

        Raises:
            Unauthenticated, Unavailable, InvalidArgument, NotFound, AdapterFailed: in this order
                of what is looked at. Unavailable too where the decision cannot be audited.
        """
        trace = Trace()
        try:
            ticket, decision = self._decide(raw, trace, now_s=now_s, now_ns=now_ns)
        except ServingError as error:
            self._audit.decided(raw, trace, error)
            raise
        except Exception:
            internal = Internal()
            log.exception("error id %s", internal.error_id)
            self._audit.decided(raw, trace, internal)
            raise internal from None
        self._audit.decided(raw, trace, None)
        if trace.overlooked and trace.identity is not None:
            log.warning(
                "let through, though %s: %s asked for %s",
                ", ".join(trace.overlooked),
                trace.identity.principal.name,
                trace.resolved,
            )
        if not cancellable:
            return decision
        return dataclasses.replace(decision, cancel_ticket=sign(_cancel(ticket), self._key))

    def _identify(self, raw: RawRequest, policy: Policy, trace: Trace) -> Identity:
        try:
            return identify(raw, policy, self._wall_clock())
        except Unauthenticated as error:
            if self._enforcement.strict:
                raise
            if self._enforcement.control == "permissive":
                trace.overlooked.append(error.reason)
            return nobody()

    def _decide(
        self, raw: RawRequest, trace: Trace, *, now_s: float, now_ns: int
    ) -> tuple[Ticket, Decision]:
        policy = self._policy_source.current(now_s)
        trace.identity = self._identify(raw, policy, trace)
        principal = trace.identity.principal
        snapshot = self._snapshots.current(now_s)
        prompt = self._prompt(raw, snapshot.model_dir)
        given, lora_name = sampling.requested(raw)
        trace.prompt_sha256 = sha256_hex(prompt.encode("utf-8"))
        uid = secrets.token_hex(16)
        aliases = Chosen(snapshot.aliases, uid)
        enforcement = self._enforced(snapshot.aliases)
        wish = fusing.read(raw.fusion, self._fusion)
        if wish.mode == fusing.AUTO:
            asker = Asker(
                principal,
                policy,
                snapshot,
                aliases,
                enforcement,
                asked(raw, lora_name),
                lambda: self._own_words(raw),
            )
            wish = dataclasses.replace(wish, terms=self._modes.computed(wish, asker, now_s))
        trace.parts = route(
            raw,
            lora_name,
            principal=principal,
            policy=policy,
            snapshot=snapshot,
            aliases=aliases,
            enforcement=enforcement,
            trace=trace,
            wish=wish,
            bounds=self._fusion,
        )
        canonical = sampling.canonical(given, self._limits)
        terms = tuple((part.lora_id, part.weight) for part in trace.parts)
        self._modes.check(trace.mode, terms, canonical)
        request = EngineRequest(
            sampling=canonical,
            stream=_stream(raw),
            prepend_prompt=_prepend_prompt(raw),
            special_tokens=raw.messages is None,
            returns=tuple(sorted(raw.returns)),
            fusion=trace.mode,
        ).to_json()
        trace.deadline_s = sampling.deadline_s(raw, self._limits.deadline_s)
        deadline_ns = now_ns + int(trace.deadline_s * 1e9)
        trace.uid = uid
        ticket = Ticket(
            boot_id=self._boot_id,
            audience=ENGINE_AUDIENCE,
            operation="generate",
            uid=trace.uid,
            department=principal.department,
            principal=principal.name,
            parts=trace.parts,
            prompt_sha256=trace.prompt_sha256,
            request_sha256=sha256_hex(request.encode("utf-8")),
            deadline_ns=deadline_ns,
            expires_ns=now_ns + int(USE_WITHIN_S * 1e9),
        )
        return ticket, Decision(prompt, request, sign(ticket, self._key))

    def _enforced(self, aliases: Mapping[str, Route]) -> Enforcement:
        """What is served by name follows the aliases, which an operator may change any time."""
        if aliases is not self._seen:
            try:
                self._enforcement = Enforcement.of(self._access, aliases)
            except ValueError as error:
                log.error("what is served stays as it was: %s", error)
            self._seen = aliases
        return self._enforcement

    def _prompt(self, raw: RawRequest, model_dir: str) -> str:
        """The prompt, from exactly one of ``text_input`` and ``messages``."""
        most = self._limits.max_prompt_bytes
        if raw.messages is not None and raw.text_input is None:
            return chat.render(chat.parse(raw.messages, max_bytes=most), model_dir)
        if raw.text_input is None or raw.messages is not None:
            raise InvalidArgument("text_input", "send exactly one of text_input and messages")
        if not raw.text_input:
            raise InvalidArgument("text_input", "must not be empty")
        if len(raw.text_input) > most:
            raise InvalidArgument("text_input", f"longer than {most} bytes")
        try:
            return raw.text_input.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidArgument("text_input", "not UTF-8") from None

    def _own_words(self, raw: RawRequest) -> str:
        """What the caller says, in one text; the prompt has been read and found good."""
        if raw.messages is None:
            return (raw.text_input or b"").decode("utf-8")
        messages = chat.parse(raw.messages, max_bytes=self._limits.max_prompt_bytes)
        return "\n".join(m["content"] for m in messages if m["role"] == "user")


def _cancel(ticket: Ticket) -> Ticket:
    """What lets its holder cancel the request of ``ticket``."""
    return dataclasses.replace(
        ticket,
        operation="cancel",
        prompt_sha256=sha256_hex(CANCEL_PROMPT.encode()),
        request_sha256=sha256_hex(CANCEL_REQUEST.encode()),
        expires_ns=ticket.deadline_ns + _GRACE_NS,
    )


def _stream(raw: RawRequest) -> bool:
    """Whether the answer is streamed, which the door has to be able to do."""
    if raw.stream and not raw.can_stream:
        raise InvalidArgument("stream", "this model answers once; use lora_stream or lora_generate")
    return bool(raw.stream)


def _prepend_prompt(raw: RawRequest) -> bool:
    """Whether the answer begins with the prompt: the official backend's rule, never for a chat."""
    exclude = raw.exclude_input_in_output
    if exclude is None:
        exclude = bool(raw.stream)
    if raw.stream and not exclude:
        raise InvalidArgument("exclude_input_in_output", "must not be false when streaming")
    return not exclude and raw.messages is None
