"""The file of signing keys: which key may vouch for which adapters, and until when.

A key is a secret that signer and server share, or the public half of a publisher's own.
"""

from __future__ import annotations

import datetime
import fnmatch
import os
import stat
import threading
from pathlib import Path
from typing import Any, Literal, Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from python_backend.adapters import oms, signing
from python_backend.adapters.globs import Globs
from python_backend.adapters.rejection import AdapterRejected, Reason, shown
from python_backend.settings import explain

KEY_BYTES = 32


class SigningKeysError(Exception):
    """A keys file that cannot be used; the text names the file, the key and the cure."""


class SigningKey(BaseModel):
    """One key: ``secret``, 64 hex digits, or ``public_key``, PEM text of an elliptic curve.

    ``adapters`` are globs such as ``fin_*``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    secret: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$", repr=False)
    public_key: str | None = None
    adapters: Globs = Field(min_length=1)
    #: From then on the key vouches for nothing; None for no end.
    not_after: datetime.datetime | None = None

    @field_validator("not_after")
    @classmethod
    def _with_zone(cls, moment: datetime.datetime | None) -> datetime.datetime | None:
        return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=datetime.UTC)

    @field_validator("public_key")
    @classmethod
    def _as_everybody_writes_it(cls, pem: str | None) -> str | None:
        return None if pem is None else oms.public_key(pem)[0]

    @model_validator(mode="after")
    def _one_kind(self) -> SigningKey:
        if (self.secret is None) == (self.public_key is None):
            raise ValueError("a key has either secret or public_key")
        return self

    def covers(self, lora_id: str) -> bool:
        """Whether the key may vouch for this adapter."""
        return any(fnmatch.fnmatchcase(lora_id, glob) for glob in self.adapters)


class SigningKeys(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    keys: tuple[SigningKey, ...] = ()

    @model_validator(mode="after")
    def _ids_once(self) -> SigningKeys:
        ids = [key.id for key in self.keys]
        for name in ids:
            if ids.count(name) > 1:
                raise ValueError(f"the key id {name!r} is given twice")
        public = [key.public_key for key in self.keys if key.public_key is not None]
        if len(set(public)) != len(public):
            raise ValueError("a public key is given twice")
        return self

    def find(self, key_id: str, lora_id: str, now_s: float) -> bytes:
        """The secret of a key that may vouch for ``lora_id`` now (see ``signing.FindKey``)."""
        key = next((key for key in self.keys if key.id == key_id), None)
        name = shown(key_id)
        if key is None:
            raise _refused(f"the key {name} is not in the server's keys file")
        if key.secret is None:
            raise _refused(f"the key {name} is a public one and vouches by {signing.BUNDLE_FILE}")
        _check_may(key, lora_id, now_s)
        return bytes.fromhex(key.secret)

    def find_public(self, key_hash: str, lora_id: str, now_s: float) -> str:
        """The public key of this hash (``oms.public_key``), PEM, if it may vouch for ``lora_id``.

        Raises:
            AdapterRejected: ``signing_key``.
        """
        for key in self.keys:
            if key.public_key is not None and oms.public_key(key.public_key)[1] == key_hash:
                _check_may(key, lora_id, now_s)
                return key.public_key
        raise _refused(f"the public key {shown(key_hash[:12])} is not in the server's keys file")


def _check_may(key: SigningKey, lora_id: str, now_s: float) -> None:
    name = shown(key.id)
    if not key.covers(lora_id):
        raise _refused(f"the key {name} is not for this adapter")
    if key.not_after is not None and now_s >= key.not_after.timestamp():
        raise _refused(f"the key {name} has expired; sign the adapter with its successor")


class Keys(Protocol):
    """Where keys come from."""

    def current(self) -> SigningKeys:
        """The keys as they stand. Raises ``AdapterRejected``: they cannot be told."""


def _refused(sentence: str) -> AdapterRejected:
    return AdapterRejected(Reason.SIGNING_KEY, f"{sentence}.")


def load(path: Path) -> SigningKeys:
    """The keys in ``path``, YAML or JSON.

    Raises:
        SigningKeysError: the file is missing, others may read it, or its content is wrong.
    """
    try:
        file_fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(file_fd, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                raise SigningKeysError(f"{path}: others may read it; chmod 600 it")
            body: Any = yaml.safe_load(file.read())
        return SigningKeys.model_validate(body)
    except OSError as error:
        cure = "`python -m tools signing-keys new` makes one"
        raise SigningKeysError(f"{path}: {error.strerror}; {cure}") from None
    except (ValueError, yaml.YAMLError) as error:
        if isinstance(error, ValidationError):
            raise SigningKeysError(explain(path, error)) from None
        raise SigningKeysError(f"{path}: cannot be read as YAML") from None


class KeyFile:
    """The newest good keys of a file, read again when it has changed. Thread-safe.

    Raises:
        SigningKeysError: the file cannot be used at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp = self._look()
        self._keys = load(path)

    def current(self) -> SigningKeys:
        """The keys as the file has them now.

        Raises:
            AdapterRejected: ``signing_key``: it cannot be used any more. Keys that an operator has
                taken out, or meant to, must not go on vouching.
        """
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                try:
                    self._keys = load(self._path)
                except SigningKeysError:
                    raise _refused("the server's keys file cannot be used; repair it") from None
                self._stamp = stamp
            return self._keys

    def _look(self) -> tuple[int, int, int, int] | None:
        try:
            status = self._path.lstat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
