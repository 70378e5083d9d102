"""Settings of remote adapter sources, and the file of their credentials."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

SCHEMES = ("s3", "gs", "hf", "https", "http")


class CredentialsError(Exception):
    """A credentials file that cannot be used; the text repeats nothing of its content."""


class SourceSettings(BaseModel):
    """Where ``add`` and ``update`` may fetch adapters from; nowhere unless it is said here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Schemes (``s3``) or beginnings of URIs (``https://models.example/lora/``), cut at a slash.
    allow: tuple[str, ...] = ()
    #: Most bytes of one adapter, all files together.
    max_bytes: int = Field(default=2 << 30, gt=0)
    #: Longest time one adapter may take to arrive, seconds.
    deadline_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    #: Credentials, mode 0600; without it the back ends look where they always do (environment).
    credentials_file: Path | None = None

    @field_validator("allow")
    @classmethod
    def _allow(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            parts = urlsplit(entry if ":" in entry else f"{entry}://")
            if parts.scheme not in SCHEMES or (parts.path and not parts.netloc):
                raise ValueError(f"{entry!r} is no scheme of {', '.join(SCHEMES)} and no such URI")
            if "@" in parts.netloc or parts.query or parts.fragment:
                raise ValueError("a beginning of a URI holds no user, no query and no fragment")
        return entries


class Credentials(BaseModel):
    """What the back ends are given.

    ``s3``: key, secret, token, endpoint_url, region_name. ``gs``: token (a service account's file),
    endpoint_url, project. ``hf``: token, endpoint. ``https``: request headers by beginning of URI.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    s3: dict[str, str] = Field(default={}, repr=False)
    gs: dict[str, str] = Field(default={}, repr=False)
    hf: dict[str, str] = Field(default={}, repr=False)
    https: dict[str, dict[str, str]] = Field(default={}, repr=False)

    @field_validator("s3", "gs", "hf")
    @classmethod
    def _known(cls, given: dict[str, str], info: Any) -> dict[str, str]:
        known = {
            "s3": {"key", "secret", "token", "endpoint_url", "region_name"},
            "gs": {"token", "endpoint_url", "project"},
            "hf": {"token", "endpoint"},
        }[info.field_name]
        if given.keys() - known:
            raise ValueError(f"only {', '.join(sorted(known))} are known")
        return given


def read_credentials(path: Path | None) -> Credentials:
    """The credentials, read anew for each fetch so that they can be rotated.

    Raises:
        CredentialsError: the file is not there, not private, or not as it should be.
    """
    if path is None:
        return Credentials()
    try:
        with open(path, encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise CredentialsError("others may read it; chmod 600")
            body = yaml.safe_load(file)
        return Credentials.model_validate(body or {})
    except OSError as error:
        problem = os.strerror(error.errno or 0).lower()
        raise CredentialsError(f"it cannot be read: {problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise CredentialsError("it is not YAML") from None
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"][:1])
        raise CredentialsError(f"wrong value under {where or 'the top level'}") from None
