"""The OpenSSF's ``model-signing`` package: the one place that touches it.

It would read the files it judges by itself, a second time and after everybody else. So it is handed
the digests of what was read here: the bytes that were verified are the bytes that are served. It is
imported when the first bundle is looked at, since that takes a third of a second; the key files of
its method ``key`` need no network.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.signing import BUNDLE_FILE, bad

if TYPE_CHECKING:
    from model_signing.hashing import Config as Hashing


class SigningFailed(Exception):
    """A private key that cannot be used; the text says why."""


def verify(data: bytes, public_key: str, lora_id: str, found: Mapping[str, str]) -> bool:
    """Whether the bundle vouches for exactly these files.

    Args:
        data: the bundle.
        public_key: PEM text.
        found: sha256 hex by file name.

    Returns:
        False where the signature is good and the files are others than those it was made for.

    Raises:
        AdapterRejected: ``bad_signature``: the key has not signed this; ``signing_key``: the
            package is not installed.
    """
    try:
        from model_signing import verifying
    except ImportError:
        raise AdapterRejected(
            Reason.SIGNING_KEY, "the server lacks the package model-signing; install it."
        ) from None
    asked: list[None] = []
    with _in_memory(public_key.encode("ascii")) as key, _in_memory(data) as bundle:
        try:
            verifier = verifying.Config()  # type: ignore[no-untyped-call]
            verifier.use_elliptic_key_verifier(public_key=key)
            verifier.set_hashing_config(_known(lora_id, found, asked)).verify(key, bundle)
        except Exception:
            # Its errors are of many kinds. It compares files only after the signature was good.
            if asked:
                return False
            raise bad(
                BUNDLE_FILE, "does not fit its own content or its key; sign it again"
            ) from None
    return True


def sign(private_key: Path, lora_id: str, files: Mapping[str, str]) -> str:
    """A new bundle's text.

    Args:
        private_key: PEM, not encrypted.
        files: sha256 hex by file name.

    Raises:
        SigningFailed: the key cannot be used.
        OSError: it cannot be read.
    """
    from model_signing import signing

    with _in_memory(b"") as bundle:
        try:
            signer = signing.Config()  # type: ignore[no-untyped-call]
            signer.use_elliptic_key_signer(private_key=private_key)
            signer.set_hashing_config(_known(lora_id, files, [])).sign(private_key, bundle)
        except (ValueError, TypeError, AttributeError):
            raise SigningFailed(
                f"{private_key}: no unencrypted private key in PEM on a curve that is taken"
            ) from None
        return bundle.read_text("utf-8")


def _known(lora_id: str, files: Mapping[str, str], asked: list[None]) -> Hashing:
    """What the package calls to read a folder; reads nothing."""
    from model_signing import hashing, manifest
    from model_signing._hashing.hashing import Digest

    class Known(hashing.Config):
        """``hash`` notes in ``asked`` that it was called."""

        def hash(self, *_: object, **__: object) -> manifest.Manifest:
            asked.append(None)
            items = [
                manifest.FileManifestItem(
                    path=PurePosixPath(name), digest=Digest("sha256", bytes.fromhex(sha256))
                )
                for name, sha256 in sorted(files.items())
            ]
            kind = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
            return manifest.Manifest(lora_id, items, manifest.SerializationType.from_args(kind))

        def add_ignored_paths(self, **_: object) -> None:
            """What the signer left out is no reason to leave it unread here."""

    return Known()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _in_memory(data: bytes) -> Iterator[Path]:
    """A file that nobody else can reach: the package takes paths only."""
    handle = os.memfd_create(BUNDLE_FILE, os.MFD_CLOEXEC)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(data)
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
