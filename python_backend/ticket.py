"""The gate's signed decision.

Nothing in Triton hides a composing model, so the engine model refuses whatever carries no valid
ticket. A ticket is HMAC-SHA256 over a canonical, length-prefixed encoding of every field that the
decision rests on; the encoding itself travels with the MAC, so there is one byte string that was
signed and one that is read, and no second parser that could disagree.

    token   = base64url(payload) "." base64url(mac)
    payload = fields in the order of ``_FIELDS``, each 4-byte big-endian length + bytes
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Literal, cast

from python_backend.errors import Overloaded, Unauthenticated

VERSION = "1"
KEY_BYTES = 32
#: Longest token that is looked at; a real one is far below.
MAX_TOKEN_CHARS = 16_384

#: The model that tickets are made out to.
ENGINE_AUDIENCE = "vllm_lora"
#: How long a ticket may take from the gate to the engine, seconds; the deadline is another matter.
USE_WITHIN_S = 60.0
#: What a cancel ticket is bound to, and what has to travel beside it.
CANCEL_PROMPT, CANCEL_REQUEST = "", "{}"

Operation = Literal["generate", "cancel", "admin"]


def boottime_ns() -> int:
    """Nanoseconds since boot, suspended time included: unlike the wall clock it never jumps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclasses.dataclass(frozen=True)
class Part:
    """One adapter of a decision: its public name, sha256 hex digest of its content, weight."""

    lora_id: str
    digest: str
    weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class Ticket:
    """What the gate decided. Times are nanoseconds of CLOCK_BOOTTIME.

    ``parts`` is empty for the base model. ``prompt_sha256`` and ``request_sha256`` are hex digests
    of the UTF-8 prompt and of the canonical request JSON that travel beside the ticket.
    """

    boot_id: str
    audience: str
    operation: Operation
    uid: str
    department: str
    principal: str
    parts: tuple[Part, ...]
    prompt_sha256: str
    request_sha256: str
    deadline_ns: int
    expires_ns: int


class InvalidTicket(Unauthenticated):
    """A ticket that is missing, malformed, forged, expired, used, or for something else.

    One sentence for all of these: which check failed helps only an attacker. The reason is for
    the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("this model is called through its gate; the ticket is not valid.")
        self.reason = reason


def sha256_hex(data: bytes) -> str:
    """Lower-case hex sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def _pack(fields: Iterable[str]) -> bytes:
    raws = [field.encode("utf-8") for field in fields]
    return b"".join([piece for raw in raws for piece in (len(raw).to_bytes(4, "big"), raw)])


def _unpack(payload: bytes) -> list[str]:
    fields, offset = [], 0
    while offset < len(payload):
        if offset + 4 > len(payload):
            raise InvalidTicket("cut off")
        (length,) = struct.unpack_from(">I", payload, offset)
        offset += 4
        if offset + length > len(payload):
            raise InvalidTicket("cut off")
        fields.append(payload[offset : offset + length].decode("utf-8"))
        offset += length
    return fields


def _encode(ticket: Ticket) -> bytes:
    head: Sequence[str] = (
        VERSION,
        ticket.boot_id,
        ticket.audience,
        ticket.operation,
        ticket.uid,
        ticket.department,
        ticket.principal,
        ticket.prompt_sha256,
        ticket.request_sha256,
        str(ticket.deadline_ns),
        str(ticket.expires_ns),
        str(len(ticket.parts)),
    )
    # float.hex() is exact, so a weight can never change by being printed and read again.
    parts = [f for p in ticket.parts for f in (p.lora_id, p.digest, float(p.weight).hex())]
    return _pack([*head, *parts])


def _decode(payload: bytes) -> Ticket:
    try:
        version, boot, aud, op, uid, dep, prin, prompt, request, deadline, expires, count, *rest = (
            _unpack(payload)
        )
        if version != VERSION or op not in ("generate", "cancel", "admin"):
            raise InvalidTicket("version or operation")
        if len(rest) != 3 * int(count):
            raise InvalidTicket("parts")
        parts = tuple(
            Part(rest[i], rest[i + 1], float.fromhex(rest[i + 2])) for i in range(0, len(rest), 3)
        )
        operation = cast(Operation, op)
        return Ticket(
            boot,
            aud,
            operation,
            uid,
            dep,
            prin,
            parts,
            prompt,
            request,
            int(deadline),
            int(expires),
        )
    except (ValueError, OverflowError) as error:
        raise InvalidTicket("malformed") from error


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _unb64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _mac(key: bytes, payload: bytes) -> bytes:
    # In one call: three times as fast as an HMAC object.
    return hmac.digest(key, b"lora-ticket\0" + payload, "sha256")


def sign(ticket: Ticket, key: bytes) -> str:
    """The token for ``ticket``, signed with a key of ``KEY_BYTES`` bytes."""
    payload = _encode(ticket)
    return f"{_b64(payload)}.{_b64(_mac(key, payload))}"


def peek(token: str) -> Ticket:
    """The ticket inside a token, **unverified**: for a door that wants to know its own request.

    Raises:
        InvalidTicket: it cannot be read.
    """
    return _decode(_split(token)[0])


def _split(token: str) -> tuple[bytes, bytes]:
    if not token or len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise InvalidTicket("missing, too long or not ASCII")
    payload, dot, mac = token.partition(".")
    if not dot:
        raise InvalidTicket("no MAC")
    try:
        raw_payload, raw_mac = _unb64(payload), _unb64(mac)
    except (binascii.Error, ValueError) as error:
        raise InvalidTicket("not base64url") from error
    # base64 has several spellings of one byte string (stray low bits); only ours is accepted.
    if _b64(raw_payload) != payload or _b64(raw_mac) != mac:
        raise InvalidTicket("not canonical base64url")
    return raw_payload, raw_mac


def verify(
    token: str,
    key: bytes,
    *,
    boot_id: str,
    audience: str,
    operation: Operation,
    prompt: bytes,
    request: bytes,
    now_ns: int,
) -> Ticket:
    """The ticket, if it was signed by our gate, now, for exactly this request.

    Use (once) is a matter of ``SeenUids``: this function has no state.

    Raises:
        InvalidTicket: it was not; ``reason`` says why, for the log.
    """
    payload, mac = _split(token)
    if not hmac.compare_digest(mac, _mac(key, payload)):
        raise InvalidTicket("MAC")
    ticket = _decode(payload)
    if ticket.boot_id != boot_id:
        raise InvalidTicket("another boot")
    if ticket.audience != audience or ticket.operation != operation:
        raise InvalidTicket("another audience or operation")
    if now_ns >= ticket.expires_ns:
        raise InvalidTicket("expired")
    if ticket.prompt_sha256 != sha256_hex(prompt) or ticket.request_sha256 != sha256_hex(request):
        raise InvalidTicket("another prompt or request")
    return ticket


class SeenUids:
    """The uids that have been used, each kept until its ticket has expired.

    Thread-safe. Bounded: at ``limit`` live entries the next ticket is refused rather than an old
    one forgotten, since a forgotten uid could be used again.
    """

    def __init__(self, limit: int = 1_000_000) -> None:
        self._limit = limit
        self._expiry: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._next_sweep_ns = 0

    def __len__(self) -> int:
        return len(self._expiry)

    def use(self, ticket: Ticket, now_ns: int) -> None:
        """Marks the ticket as used.

        Raises:
            InvalidTicket: it has been used before.
            Overloaded: the set is full of unexpired tickets.
        """
        key = (ticket.operation, ticket.uid)
        with self._lock:
            if key in self._expiry:
                raise InvalidTicket("used before")
            if now_ns >= self._next_sweep_ns or len(self._expiry) >= self._limit:
                self._expiry = {k: t for k, t in self._expiry.items() if t > now_ns}
                self._next_sweep_ns = now_ns + 10_000_000_000
            if len(self._expiry) >= self._limit:
                raise Overloaded("too many requests are under way.", retry_after=1)
            self._expiry[key] = ticket.expires_ns
