"""``tools signing-keys``: the file of signing keys, made and rotated; publishers' own keys."""

from __future__ import annotations

import dataclasses
import datetime
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from python_backend import files
from python_backend.adapters.signing_keys import (
    KEY_BYTES,
    SigningKey,
    SigningKeys,
    SigningKeysError,
    load,
)
from python_backend.settings import explain

KeysFile = Annotated[Path, typer.Option("--keys", help="The keys file (serving.yaml: signing).")]
KeyId = Annotated[str, typer.Option(help="The key's id, such as fin-2026.")]

PublicKey = Annotated[Path, typer.Option(help="A publisher's public key, PEM.")]
Adapters = Annotated[
    list[str], typer.Option("--for", help="Globs over lora_ids, such as 'fin_*'; repeatable.")
]
Days = Annotated[int | None, typer.Option(help="Valid for so many days.", min=1)]

app = typer.Typer(
    help="The file of signing keys: make a key, trust a publisher's, replace one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _fail(text: object) -> typer.Exit:
    print(f"error: {text}", file=sys.stderr)
    return typer.Exit(1)


def _write(path: Path, keys: SigningKeys) -> None:
    body = keys.model_dump(mode="json", exclude_none=True)
    files.replace(path, yaml.safe_dump(body, sort_keys=False))


def _load(path: Path) -> SigningKeys:
    """The keys there are; none where the file is still to be made."""
    return load(path) if os.path.lexists(path) else SigningKeys()


def _added(path: Path, keys: SigningKeys, more: dict[str, object]) -> SigningKeys:
    """``keys`` with one more, checked as the server will check them."""
    try:
        return SigningKeys(keys=(*keys.keys, SigningKey.model_validate(more)))
    except ValidationError as error:
        raise SigningKeysError(explain(path, error)) from None


def _secret() -> dict[str, object]:
    return {"secret": secrets.token_bytes(KEY_BYTES).hex()}


def _public(path: Path) -> dict[str, object]:
    return {"public_key": path.read_text("ascii", "replace")}


@dataclasses.dataclass(frozen=True)
class Only:
    """One public key, as a source of keys (``signing_keys.Keys``)."""

    keys: SigningKeys

    def current(self) -> SigningKeys:
        """It alone."""
        return self.keys


def only(path: Path, lora_id: str) -> Only:
    """The public key in ``path``, for one adapter.

    Raises:
        SigningKeysError: it is none.
        OSError: it cannot be read.
    """
    key: dict[str, object] = {"id": "given", "adapters": (lora_id,), **_public(path)}
    return Only(_added(path, SigningKeys(), key))


@app.command("new")
def new(keys: KeysFile, key_id: KeyId, adapters: Adapters, days: Days = None) -> None:
    """Make a key for the adapters of a department, or for some; the file is made with mode 0600."""
    _append(keys, key_id, adapters, days, _secret)


@app.command("trust")
def trust(
    keys: KeysFile, key_id: KeyId, public_key: PublicKey, adapters: Adapters, days: Days = None
) -> None:
    """Let a publisher's public key vouch for adapters: nobody shares a secret with him."""
    _append(keys, key_id, adapters, days, lambda: _public(public_key))


def _append(
    keys: Path,
    key_id: str,
    adapters: list[str],
    days: int | None,
    material: Callable[[], dict[str, object]],
) -> None:
    until = None if days is None else _in_days(days)
    try:
        more = {"id": key_id, "adapters": tuple(adapters), "not_after": until, **material()}
        _write(keys, _added(keys, _load(keys), more))
    except (SigningKeysError, OSError) as error:
        raise _fail(error) from None
    print(f"{key_id} is in {keys}")


@app.command("pair")
def pair(
    private_key: Annotated[Path, typer.Argument(help="Where it goes; beside it, with .pub.")],
) -> None:
    """Make a publisher's pair of keys (P-256): the private one stays with him, mode 0600."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, nothing = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, nothing)
    public = key.public_key().public_bytes(
        encoding, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    public_key = private_key.with_name(private_key.name + ".pub")
    try:
        # Never over one that is there: what it signed could not be renewed.
        for path, text, mode in ((private_key, private, 0o600), (public_key, public, 0o644)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(text)
    except OSError as error:
        raise _fail(error) from None
    print(f"{private_key} and {public_key} are made")


@app.command("rotate")
def rotate(
    keys: KeysFile,
    key_id: KeyId,
    new_id: Annotated[str, typer.Option(help="The id of its successor.")],
    grace_days: Annotated[
        int, typer.Option(help="The old key still vouches for so many days.", min=0)
    ] = 30,
    public_key: Annotated[
        Path | None, typer.Option(help="The successor of a publisher's key, PEM.")
    ] = None,
) -> None:
    """Make a successor for the same adapters, and an end for the old key: sign again until then."""
    try:
        found = load(keys)
        old = next((key for key in found.keys if key.id == key_id), None)
        if old is None:
            raise _fail(f"{keys}: there is no key {key_id!r}")
        if old.public_key is not None and public_key is None:
            raise _fail(f"{keys}: {key_id} is a public key; give its successor's --public-key")
        if old.public_key is None and public_key is not None:
            raise _fail(f"{keys}: {key_id} is a secret; leave --public-key out")
        end = _in_days(grace_days)
        if old.not_after is not None:
            end = min(end, old.not_after)
        ended = old.model_copy(update={"not_after": end})
        kept = tuple(ended if key.id == key_id else key for key in found.keys)
        material = _secret() if public_key is None else _public(public_key)
        more = {"id": new_id, "adapters": old.adapters, **material}
        _write(keys, _added(keys, SigningKeys(keys=kept), more))
    except (SigningKeysError, OSError) as error:
        raise _fail(error) from None
    print(f"{new_id} is in {keys}; {key_id} ends at {end.isoformat(timespec='seconds')}")


def _in_days(days: int) -> datetime.datetime:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return now + datetime.timedelta(days=days)
