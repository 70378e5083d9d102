"""Files and folders that are not what they were: the policy, the signing keys, the adapters."""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import yaml

from loadtests.faults.house import House, NotHere
from python_backend import files
from python_backend.adapters.signing_keys import (
    KEY_BYTES,
    SigningKey,
    SigningKeys,
    SigningKeysError,
    load,
)

_BROKEN_POLICY = "version: 1\ndepartments: {fin: [\n"


@contextlib.contextmanager
def replaced(path: Path, text: str) -> Iterator[None]:
    """The file has another content, from one moment to the next; its own again at the end.

    Raises:
        NotHere: it cannot be read or written.
    """
    try:
        before, mode = path.read_text("utf-8"), path.stat().st_mode & 0o777
        files.replace(path, text, mode)
    except OSError as error:
        raise NotHere(f"{path}: {error.strerror}") from None
    try:
        yield
    finally:
        files.replace(path, before, mode)


@contextlib.contextmanager
def policy_broken(house: House) -> Iterator[str]:
    """The policy file is no YAML."""
    path = house.settings.policy
    with replaced(path, _BROKEN_POLICY):
        yield path.name


@contextlib.contextmanager
def key_rotated(house: House) -> Iterator[str]:
    """Every signing key has ended and has a successor, which nothing is signed with yet."""
    path = house.settings.signing.keys_file
    if path is None:
        raise NotHere("no signing.keys_file in the settings")
    try:
        keys = load(path)
    except SigningKeysError as error:
        raise NotHere(str(error)) from None
    body = rotated(keys, datetime.datetime.now(datetime.UTC))
    with replaced(path, yaml.safe_dump(body.model_dump(mode="json", exclude_none=True))):
        yield path.name


def rotated(keys: SigningKeys, now: datetime.datetime) -> SigningKeys:
    """The keys, ended, and a new secret for the adapters of each."""
    ended = [key.model_copy(update={"not_after": now}) for key in keys.keys]
    new = [
        SigningKey(
            id=f"successor-{number}",
            secret=secrets.token_bytes(KEY_BYTES).hex(),
            adapters=key.adapters,
        )
        for number, key in enumerate(keys.keys)
    ]
    return SigningKeys(keys=(*ended, *new))


@contextlib.contextmanager
def root_gone(house: House) -> Iterator[str]:
    """The adapter root is not there, as where a volume is not mounted any more."""
    root = house.settings.adapters.root
    away = root.with_name(f".{root.name}-away")
    try:
        os.rename(root, away)
    except OSError as error:
        raise NotHere(f"{root}: {error.strerror}") from None
    try:
        yield root.name
    finally:
        os.rename(away, root)
