"""Departments and principals, as the policy file has them."""

from __future__ import annotations

import datetime
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from python_backend.adapters.globs import Globs

#: The department and principal of whoever is let through without proof (permissive, off).
ANONYMOUS = "anonymous"

_DEPARTMENT = re.compile(r"[a-z][a-z0-9]{1,15}", re.ASCII)
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)

Role = Literal["caller", "admin"]


class Frozen(BaseModel):
    """The base of all policy objects: immutable, no unknown keys, no guessed types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def check_department(name: str) -> str:
    """``name``, if a department may have it. Raises ``ValueError``."""
    if not _DEPARTMENT.fullmatch(name):
        raise ValueError(f"{name!r} is not a department name: [a-z][a-z0-9]{{1,15}}")
    if name == ANONYMOUS:
        raise ValueError(f"{name!r} is reserved for callers without a credential")
    return name


def is_principal_name(name: str) -> bool:
    """Whether a principal may have this name."""
    return _PRINCIPAL.fullmatch(name) is not None


class Department(Frozen):
    """What the principals of one department may use, and how much of the server they get."""

    #: Globs over lora_ids, such as ``fin_*``.
    adapters: Globs = Field(default=(), strict=False)
    #: Whether the base model may be used.
    base: bool = False
    #: Whether several adapters, each of them allowed, may be mixed in one request.
    fusion: bool = False
    #: Share of the engine while others wait too, relative to theirs.
    weight: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False, strict=False)
    #: Requests in the engine at once; None for no bound of its own.
    concurrency: int | None = Field(default=None, ge=1)
    #: Tokens, read and written, per minute; None for no bound.
    tokens_per_minute: int | None = Field(default=None, ge=1)

    @field_validator("weight", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, bool | str):
            raise ValueError("must be a number")
        return value


class ApiKey(Frozen):
    """The digest of one API key. The key itself is nowhere on the server."""

    #: Hex sha256 of the key.
    sha256: str = Field(repr=False)
    #: From this moment on (Unix seconds) the key is not valid any more; None for no end.
    expires: float | None = None

    @field_validator("sha256")
    @classmethod
    def _hex(cls, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise ValueError("not 64 hex digits; give the sha256 of the key, never the key itself")
        return digest.lower()

    @field_validator("expires", mode="before")
    @classmethod
    def _moment(cls, value: Any) -> Any:
        """A date or time as YAML reads it, or ISO 8601 text; UTC where no zone is named."""
        if value is None:
            return None
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime.datetime):
            raise ValueError("must be a date or a time such as 2027-01-31T12:00:00Z")
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()


class Principal(Frozen):
    """One caller, known by API keys (several during rotation), by a token's subject, or both."""

    name: str
    department: str
    api_key_sha256: tuple[ApiKey, ...] = Field(default=(), strict=False, repr=False)
    #: What the token's principal claim says of this caller.
    jwt_subject: str | None = Field(default=None, min_length=1, max_length=256)
    roles: frozenset[Role] = Field(default=frozenset({"caller"}), strict=False)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not is_principal_name(name):
            raise ValueError("a principal's name is 1-64 of A-Z a-z 0-9 . _ @ -")
        return name

    @field_validator("api_key_sha256", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        values = value if isinstance(value, list | tuple) else [value]
        return tuple({"sha256": item} if isinstance(item, str) else item for item in values)


def anonymous() -> Principal:
    """Whoever has not said who they are."""
    return Principal(name=ANONYMOUS, department=ANONYMOUS)
