"""What an audit file looks like. Pure: bytes in, bytes out.

    line = {"seq":…,"at":…,"event":…, … ,"mac":"<64 hex>"}
    mac  = HMAC-SHA256(key, tag ‖ mac of the line before ‖ everything before ,"mac":)

Lines are ASCII whatever the values hold, so that nothing a caller sends can begin a new one. The
first line of a file (``open``) names the file, the line before it, and the heads of all files that
were there, so that a file that disappears is missed. Beside each file lies its head: a checkpoint
with the last line's number and mac, under a mac of its own.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import reprlib
from typing import Any, Literal

#: ``mac`` before the first line of a series of files.
GENESIS = bytes(32)
#: Longest value from outside that is kept, characters.
MAX_TEXT = 128
FILE_SUFFIX, HEAD_SUFFIX = ".jsonl", ".head"
KEY_FILE = "audit.key"

_LINE_TAG, _HEAD_TAG = b"audit-line\0", b"audit-head\0"
_MAC_FIELD = b',"mac":"'
#: Bytes of ``,"mac":"…"}`` at the end of a line.
_TAIL = len(_MAC_FIELD) + 64 + 2
#: Heads are overwritten in place, so all of them have one size.
_HEAD_BYTES = 512
# Made once: json.dumps with options makes an encoder at every call.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode

HeadState = Literal["open", "closed", "removed"]


class ChainError(ValueError):
    """Bytes that are no line, or no head, of ours; the message says why."""


def safe_text(value: object) -> str:
    """A value from outside as printable ASCII of at most ``MAX_TEXT`` characters."""
    if isinstance(value, bytes):
        text = value[: 4 * MAX_TEXT].decode("utf-8", "backslashreplace")
    else:
        text = value if isinstance(value, str) else _shown(value)
    return ascii(text[:MAX_TEXT])[1:-1][:MAX_TEXT]


def _shown(value: object) -> str:
    """A value that should have been text: its outline, since it may be large, deep or both."""
    try:
        return reprlib.repr(value)
    except Exception:  # a number of thousands of digits, say
        return f"<{type(value).__name__}>"


def seal(record: dict[str, Any], previous: bytes, key: bytes) -> tuple[bytes, bytes]:
    """The line for ``record`` (with its newline), and its mac.

    Args:
        previous: the mac of the line before.
    """
    body = _encode(record)[:-1].encode("ascii")
    mac = hmac.digest(key, _LINE_TAG + previous + body, "sha256")
    return b"".join((body, _MAC_FIELD, mac.hex().encode(), b'"}\n')), mac


@dataclasses.dataclass(frozen=True)
class Line:
    """A line as read: ``mac`` is what it states, ``good`` whether that follows from the rest."""

    record: dict[str, Any]
    mac: bytes
    good: bool


def unseal(line: bytes, previous: bytes, key: bytes) -> Line:
    """The line in ``line`` (without its newline).

    Raises:
        ChainError: it is not of the form of a line.
    """
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if not tail.startswith(_MAC_FIELD) or not tail.endswith(b'"}'):
        raise ChainError("no mac at its end")
    try:
        mac = bytes.fromhex(tail[len(_MAC_FIELD) : -2].decode("ascii"))
        record = json.loads(body + b"}")
    except (ValueError, RecursionError):
        raise ChainError("not a JSON object with a mac") from None
    if not isinstance(record, dict) or len(mac) != 32:
        raise ChainError("not a JSON object with a mac")
    expected = hmac.digest(key, _LINE_TAG + previous + body, "sha256")
    return Line(record, mac, hmac.compare_digest(mac, expected))


@dataclasses.dataclass(frozen=True)
class Head:
    """Where a file stood at its last checkpoint: number and mac of the last line, bytes so far.

    ``pid`` and ``start`` (``runtime.process_start``) name the writer.
    """

    file: str
    seq: int
    mac: str
    size: int
    state: HeadState
    sync: str
    pid: int
    start: str

    def seal(self, key: bytes) -> bytes:
        """The bytes of the head's file, the same number for every head."""
        body = _encode(dataclasses.asdict(self)).encode("ascii")
        mac = hmac.digest(key, _HEAD_TAG + body, "sha256").hex().encode()
        return (mac + b" " + body).ljust(_HEAD_BYTES - 1) + b"\n"

    @classmethod
    def unseal(cls, data: bytes, key: bytes) -> Head:
        """The head in ``data``.

        Raises:
            ChainError: it was not written with this key.
        """
        mac, _, body = data.strip().partition(b" ")
        expected = hmac.digest(key, _HEAD_TAG + body, "sha256").hex().encode()
        if not hmac.compare_digest(mac, expected):
            raise ChainError("its mac is wrong")
        return cls(**json.loads(body))
