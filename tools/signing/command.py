"""``tools sign`` and ``tools verify``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from python_backend import files
from python_backend.adapters import naming, oms_library, seal, signing, source_folder
from python_backend.adapters.oms_library import SigningFailed
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing import BUNDLE_FILE, SIGNATURE_FILE, Signature
from python_backend.adapters.signing_keys import KeyFile, Keys, SigningKeysError, load
from python_backend.settings import AdapterSettings
from tools.signing.keys import only

Folder = Annotated[Path, typer.Argument(help="The adapter's folder.")]
KeysFile = Annotated[Path | None, typer.Option("--keys", help="The file of signing keys.")]
LoraId = Annotated[
    str | None, typer.Option(help="The name it is served under; the folder's by default.")
]

_FAILURES = (AdapterRejected, SigningKeysError, SigningFailed, OSError)


def _name(folder: Path, lora_id: str | None) -> str:
    name = lora_id or folder.resolve().name
    if not naming.is_lora_id(name):
        _usage(f"{name!a} is not a lora_id (such as fin_risk_v2); give --lora-id")
    return name


def _usage(text: str) -> NoReturn:
    print(f"error: {text}", file=sys.stderr)
    raise typer.Exit(2)


def _failed(error: Exception) -> typer.Exit:
    print(f"error: {getattr(error, 'text', error)}", file=sys.stderr)
    return typer.Exit(1)


def sign(
    folder: Folder,
    keys: KeysFile = None,
    key_id: Annotated[str | None, typer.Option(help="Which of the keys signs.")] = None,
    private_key: Annotated[
        Path | None, typer.Option(help="Instead: a publisher's elliptic-curve key, PEM.")
    ] = None,
    lora_id: LoraId = None,
    days: Annotated[int | None, typer.Option(help="Valid for so many days.", min=1)] = None,
) -> None:
    """Vouch for every file of the folder, by a shared secret or by a publisher's private key.

    Writes adapter.sig.json, or model.sig (OpenSSF Model Signing).
    """
    name = _name(folder, lora_id)
    try:
        if private_key is not None:
            if keys is not None or key_id is not None or days is not None:
                _usage("--private-key goes with none of --keys, --key-id and --days")
            count = _sign_publicly(folder, name, private_key)
            print(f"{name} is signed by {private_key}: {count} files")
            return
        if keys is None or key_id is None:
            _usage("give --keys and --key-id, or --private-key")
        count = sign_secretly(folder, name, keys, key_id, days)
    except _FAILURES as error:
        raise _failed(error) from None
    print(f"{name} is signed by {key_id}: {count} files")


def _sign_publicly(folder: Path, name: str, private_key: Path) -> int:
    found = {file.name: file.sha256 for file in seal.manifest(folder, BUNDLE_FILE)}
    _write(folder / BUNDLE_FILE, oms_library.sign(private_key, name, found) + "\n")
    return len(found)


def sign_secretly(folder: Path, name: str, keys: Path, key_id: str, days: int | None = None) -> int:
    """Signs the folder for ``name`` by a shared secret; how many files it vouches for.

    Raises:
        SigningKeysError, AdapterRejected, OSError: no such key, not for this name, or no folder.
    """
    now = int(time.time())
    secret = load(keys).find(key_id, name, now)
    unsigned = Signature(
        key_id=key_id,
        lora_id=name,
        created=now,
        expires=None if days is None else now + days * 86_400,
        files=seal.manifest(folder),
    )
    _write(folder / SIGNATURE_FILE, signing.sign(unsigned, secret).to_json())
    return len(unsigned.files)


def _write(path: Path, text: str) -> None:
    files.replace(path, text)
    path.chmod(0o644)


def verify(
    folder: Folder,
    keys: KeysFile = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Instead: a publisher's public key, PEM.")
    ] = None,
    lora_id: LoraId = None,
) -> None:
    """Whether the server would take the folder's signature, by the server's own code."""
    name = _name(folder, lora_id)
    limit = int(AdapterSettings.model_fields["max_file_bytes"].default)
    try:
        policy = SignaturePolicy((name,), _source(keys, public_key, name))
        with source_folder.opened(folder, limit) as opened:
            size_bytes, sha256 = opened.digest()
            policy.check(name, opened.folder_fd, opened.manifest(size_bytes, sha256))
    except _FAILURES as error:
        raise _failed(error) from None
    print(f"{name}: the signature is good")


def _source(keys: Path | None, public_key: Path | None, name: str) -> Keys:
    if keys is not None and public_key is None:
        return KeyFile(keys)
    if keys is None and public_key is not None:
        return only(public_key, name)
    _usage("give --keys, or --public-key")
