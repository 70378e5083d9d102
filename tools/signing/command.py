"""``tools sign`` and ``tools verify``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from python_backend import files
from python_backend.adapters import naming, seal, signing, source_folder
from python_backend.adapters.rejection import AdapterRejected
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing import SIGNATURE_FILE, Signature
from python_backend.adapters.signing_keys import KeyFile, SigningKeysError, load
from python_backend.settings import AdapterSettings

Folder = Annotated[Path, typer.Argument(help="The adapter's folder.")]
KeysFile = Annotated[Path, typer.Option("--keys", help="The file of signing keys.")]
LoraId = Annotated[
    str | None, typer.Option(help="The name it is served under; the folder's by default.")
]


def _name(folder: Path, lora_id: str | None) -> str:
    name = lora_id or folder.resolve().name
    if not naming.is_lora_id(name):
        print(
            f"error: {name!a} is not a lora_id (such as fin_risk_v2); give --lora-id",
            file=sys.stderr,
        )
        raise typer.Exit(2)
    return name


def sign(
    folder: Folder,
    key_id: Annotated[str, typer.Option(help="Which key signs.")],
    keys: KeysFile,
    lora_id: LoraId = None,
    days: Annotated[int | None, typer.Option(help="Valid for so many days.", min=1)] = None,
) -> None:
    """Write adapter.sig.json into the folder: every file of it, vouched for by a key."""
    name, now = _name(folder, lora_id), int(time.time())
    try:
        secret = load(keys).find(key_id, name, now)
        unsigned = Signature(
            key_id=key_id,
            lora_id=name,
            created=now,
            expires=None if days is None else now + days * 86_400,
            files=seal.manifest(folder),
        )
        path = folder / SIGNATURE_FILE
        files.replace(path, signing.sign(unsigned, secret).to_json())
        path.chmod(0o644)
    except (AdapterRejected, SigningKeysError, OSError) as error:
        print(f"error: {getattr(error, 'text', error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"{name} is signed by {key_id}: {len(unsigned.files)} files")


def verify(folder: Folder, keys: KeysFile, lora_id: LoraId = None) -> None:
    """Whether the server would take the folder's signature, by the server's own code."""
    name = _name(folder, lora_id)
    limit = int(AdapterSettings.model_fields["max_file_bytes"].default)
    try:
        policy = SignaturePolicy((name,), KeyFile(keys))
        with source_folder.opened(folder, limit) as opened:
            size_bytes, sha256 = opened.digest()
            policy.check(name, opened.folder_fd, opened.manifest(size_bytes, sha256))
    except (AdapterRejected, SigningKeysError, OSError) as error:
        print(f"error: {getattr(error, 'text', error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"{name}: the signature is good")
