"""The keys that tokens are verified with, from a file, read again when it changes."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK, PyJWTError

from ensemble.jwt_settings import JwtSettings
from python_backend import files

MIN_SECRET_BYTES, MIN_RSA_BITS = 32, 2048
_MAX_FILE_BYTES = 1 << 20
_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_TYPES = {"RS": RSAPublicKey, "PS": RSAPublicKey, "ES": EllipticCurvePublicKey}
#: Beginnings that no secret has: with one of them it would be somebody's public key.
_KEY_MARKS = (b"-----BEGIN", b"ssh-", b"ecdsa-sha2-", b'"kty"')


class KeyFileError(Exception):
    """A key file that cannot be used; the text names the file and the cure."""


def fits(algorithm: str, key: Any) -> bool:
    """Whether ``key`` is of the kind that ``algorithm`` needs."""
    if algorithm.startswith("HS"):
        return isinstance(key, bytes)
    if algorithm == "EdDSA":
        return isinstance(key, Ed25519PublicKey)
    if not isinstance(key, _TYPES[algorithm[:2]]):
        return False
    if isinstance(key, EllipticCurvePublicKey):
        return key.curve.name == _CURVES[algorithm]
    return isinstance(key, RSAPublicKey) and key.key_size >= MIN_RSA_BITS


class KeyRing:
    """The keys of one file. Thread-safe: readers see the old keys or the new ones.

    Args:
        folder: what the path in ``settings`` is relative to.

    Raises:
        KeyFileError: the file cannot be used at the start.
    """

    def __init__(self, settings: JwtSettings, folder: Path) -> None:
        self._settings = settings
        self._path = folder / (settings.key_file or settings.jwks_file or "")
        self._stamp = files.stamp(self._path)
        self._keys = self._load()

    def find(self, algorithm: str, kid: object) -> Any | None:
        """The key for a token's ``alg`` and ``kid``, or None: a set of several needs a kid."""
        keys = self._keys
        if self._settings.key_file is not None:
            key, only = keys[None]
        elif isinstance(kid, str):
            key, only = keys.get(kid, (None, None))
        else:
            key, only = next(iter(keys.values())) if len(keys) == 1 else (None, None)
        if key is None or (only is not None and only != algorithm) or not fits(algorithm, key):
            return None
        return key

    def refresh(self) -> bool:
        """Reads the file again if it has changed; returns whether it had.

        Raises:
            KeyFileError: it cannot be used; the keys stay as they were.
        """
        stamp = files.stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._keys = self._load()
        return True

    def _load(self) -> dict[str | None, tuple[Any, str | None]]:
        """Key and, where the file fixes it, algorithm by ``kid``; a key file's kid is None."""
        try:
            mode = self._path.stat().st_mode
            if not stat.S_ISREG(mode) or self._path.stat().st_size > _MAX_FILE_BYTES:
                raise KeyFileError(f"{self._path}: not a key file: no plain file, or too large")
            data = self._path.read_bytes()
        except OSError as error:
            raise KeyFileError(f"{self._path}: {error.strerror}") from None
        if self._settings.symmetric:
            return {None: (self._secret(data, mode), None)}
        return {None: (self._public(data), None)} if self._settings.key_file else self._jwks(data)

    def _secret(self, data: bytes, mode: int) -> bytes:
        # The trailing newline of an editor is no part of the secret.
        secret = data.rstrip(b"\r\n")
        if any(mark in data for mark in _KEY_MARKS):
            raise KeyFileError(
                f"{self._path}: holds a public or private key; HS… needs a secret of random bytes"
            )
        if len(secret) < MIN_SECRET_BYTES:
            raise KeyFileError(f"{self._path}: shorter than {MIN_SECRET_BYTES} bytes")
        if mode & 0o077:
            raise KeyFileError(f"{self._path}: readable by others; chmod 600 it")
        return secret

    def _public(self, data: bytes) -> Any:
        try:
            key = load_pem_public_key(data)
        except (ValueError, UnsupportedAlgorithm):
            raise KeyFileError(f"{self._path}: not a public key in PEM") from None
        self._check(key, "the key")
        return key

    def _check(self, key: Any, what: str) -> None:
        if not any(fits(name, key) for name in self._settings.algorithms):
            names = ", ".join(self._settings.algorithms)
            raise KeyFileError(f"{self._path}: {what} fits none of {names} (RSA: 2048 bits up)")

    def _jwks(self, data: bytes) -> dict[str | None, tuple[Any, str | None]]:
        try:
            listed = json.loads(data)["keys"]
            found: dict[str | None, tuple[Any, str | None]] = {}
            for jwk in listed:
                # Keys for encryption, and shared secrets, have no business here.
                if jwk.get("use", "sig") != "sig" or jwk["kty"] == "oct" or "d" in jwk:
                    continue
                key, kid = PyJWK(jwk, algorithm=jwk.get("alg") or _guess(jwk)).key, jwk.get("kid")
                if kid in found:
                    raise KeyFileError(f"{self._path}: the kid {kid!r} is given twice")
                if any(fits(name, key) for name in self._settings.algorithms):
                    found[kid] = (key, jwk.get("alg"))
        except (ValueError, KeyError, TypeError, AttributeError, PyJWTError, RecursionError):
            raise KeyFileError(f"{self._path}: not a JSON Web Key Set") from None
        if not found:
            raise KeyFileError(f"{self._path}: no public key for {self._settings.algorithms}")
        return found


def _guess(jwk: dict[str, Any]) -> str:
    """An algorithm by which PyJWK can read a key that names none; ``fits`` judges it later."""
    curves = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
    return "RS256" if jwk["kty"] == "RSA" else curves[jwk["crv"]]
