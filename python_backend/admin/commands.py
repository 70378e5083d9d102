"""An operator's command: one JSON object, checked by the gate and signed in canonical form."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from python_backend import strict_json
from python_backend.adapters import naming
from python_backend.errors import InvalidArgument

MAX_BYTES = 16_384
_MAX_SOURCE = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
#: A signal, or a signal and one of its scopes: a mixture's name is an expression.
_BREAKER = re.compile(r"[a-z_]{1,32}(/[a-z0-9_@*+.-]{1,1024})?", re.ASCII)

#: Fields of each operation; those with a question mark may be left out.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "list": (),
    "status": (),
    "add": ("lora_id", "source?", "sha256?"),
    "update": ("lora_id", "source", "sha256?"),
    "remove": ("lora_id",),
    "disable": ("lora_id",),
    "enable": ("lora_id",),
    "pin": ("lora_id",),
    "unpin": ("lora_id",),
    "warm": ("lora_id",),
    "cancel": ("request_uid",),
    "job": ("job",),
    "job_cancel": ("job",),
    "aliases": (),
    "alias_set": ("alias", "to", "canary?", "share?"),
    "alias_rollback": ("alias",),
    "breakers": (),
    "breaker_reset": ("breaker",),
}
#: What whoever may call at all may ask for, about their own department's requests.
FOR_CALLERS = frozenset({"cancel"})


@dataclasses.dataclass(frozen=True)
class Command:
    """One command; fields that its operation has not are empty.

    The gate adds the last two: whether the role admin stands behind it, and, for ``status``, what
    is wrong with the policy file, which only gates read.
    """

    op: str
    lora_id: str = ""
    source: str = ""
    sha256: str = ""
    request_uid: str = ""
    job: str = ""
    alias: str = ""
    to: str = ""
    canary: str = ""
    share: float = 0.0
    breaker: str = ""
    by_admin: bool = False
    policy_error: str = ""

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, ASCII."""
        body = dataclasses.asdict(self)
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Command:
        """The command in ``text``, which a valid ticket has vouched for."""
        return cls(**json.loads(text))


def parse(data: bytes) -> Command:
    """The command in a caller's JSON.

    Raises:
        InvalidArgument: it is none; the message names the field, and repeats no value.
    """
    if len(data) > MAX_BYTES:
        raise InvalidArgument("command", f"longer than {MAX_BYTES} bytes")
    try:
        body = strict_json.loads_object(data)
    except strict_json.StrictJsonError as error:
        raise InvalidArgument("command", str(error)) from None
    op = body.pop("op", None)
    if not isinstance(op, str) or op not in OPERATIONS:
        raise InvalidArgument("op", f"must be one of {', '.join(OPERATIONS)}")
    fields = OPERATIONS[op]
    known = {field.rstrip("?") for field in fields}
    for name in body:
        if name not in known:
            field = f"command.{strict_json.safe_name(name)}"
            raise InvalidArgument(field, f"{op} has no such field")
    for field in fields:
        if not field.endswith("?") and field not in body:
            raise InvalidArgument(field, f"{op} needs it")
    return Command(op=op, **{name: _checked(name, value) for name, value in body.items()})


def _checked(name: str, value: Any) -> Any:
    if name == "share":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidArgument(name, "must be a number from 0 to 1")
        return float(value)
    if not isinstance(value, str):
        raise InvalidArgument(name, "must be a string")
    if name in ("lora_id", "to", "canary"):
        return naming.check_lora_id(value, field=name)
    if name == "alias":
        if not naming.is_alias(value) or naming.is_lora_id(value):
            raise InvalidArgument(name, "reserved, shaped like a lora_id, or no plain ASCII name")
    elif name == "breaker":
        if not _BREAKER.fullmatch(value):
            raise InvalidArgument(name, "must be SIGNAL or SIGNAL/SCOPE, as breakers lists them")
    elif name == "sha256":
        if not _SHA256.fullmatch(value):
            raise InvalidArgument(name, "must be 64 hex digits, small letters")
    elif name == "source":
        if not value or len(value) > _MAX_SOURCE or "\0" in value:
            raise InvalidArgument(name, f"must be 1 to {_MAX_SOURCE} characters without NUL")
        if "://" in value and any(c in value for c in "@?#"):
            # Before the command is written down: the audit is no place for a password.
            raise InvalidArgument(name, "must hold no credentials, no query and no fragment")
    elif not _IDENTIFIER.fullmatch(value):
        raise InvalidArgument(name, "must be 1 to 64 of A-Z a-z 0-9 _ -")
    return value
