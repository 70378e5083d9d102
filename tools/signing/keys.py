"""``tools signing-keys``: the file of signing keys, made and rotated."""

from __future__ import annotations

import datetime
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml
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

app = typer.Typer(
    help="The file of signing keys: make a key, replace one.",
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
    new = {"secret": secrets.token_bytes(KEY_BYTES).hex(), **more}
    try:
        return SigningKeys(keys=(*keys.keys, SigningKey.model_validate(new)))
    except ValidationError as error:
        raise SigningKeysError(explain(path, error)) from None


@app.command("new")
def new(
    keys: KeysFile,
    key_id: KeyId,
    adapters: Annotated[
        list[str], typer.Option("--for", help="Globs over lora_ids, such as 'fin_*'; repeatable.")
    ],
    days: Annotated[int | None, typer.Option(help="Valid for so many days.", min=1)] = None,
) -> None:
    """Make a key for the adapters of a department, or for some; the file is made with mode 0600."""
    until = None if days is None else _in_days(days)
    try:
        more: dict[str, object] = {"id": key_id, "adapters": tuple(adapters), "not_after": until}
        _write(keys, _added(keys, _load(keys), more))
    except (SigningKeysError, OSError) as error:
        raise _fail(error) from None
    print(f"{key_id} is in {keys}")


@app.command("rotate")
def rotate(
    keys: KeysFile,
    key_id: KeyId,
    new_id: Annotated[str, typer.Option(help="The id of its successor.")],
    grace_days: Annotated[
        int, typer.Option(help="The old key still vouches for so many days.", min=0)
    ] = 30,
) -> None:
    """Make a successor for the same adapters, and an end for the old key: sign again until then."""
    try:
        found = load(keys)
        old = next((key for key in found.keys if key.id == key_id), None)
        if old is None:
            raise _fail(f"{keys}: there is no key {key_id!r}")
        end = _in_days(grace_days)
        if old.not_after is not None:
            end = min(end, old.not_after)
        ended = old.model_copy(update={"not_after": end})
        kept = tuple(ended if key.id == key_id else key for key in found.keys)
        more: dict[str, object] = {"id": new_id, "adapters": old.adapters}
        _write(keys, _added(keys, SigningKeys(keys=kept), more))
    except (SigningKeysError, OSError) as error:
        raise _fail(error) from None
    print(f"{new_id} is in {keys}; {key_id} ends at {end.isoformat(timespec='seconds')}")


def _in_days(days: int) -> datetime.datetime:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return now + datetime.timedelta(days=days)
