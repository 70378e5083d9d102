"""A folder, a publisher who signs it with a key of his own, and a server that trusts him."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from python_backend.adapters import oms_library, seal
from python_backend.adapters.signing import BUNDLE_FILE
from tests.unit.python_backend.adapters.signing_house import NAME, SignedFolder


def pair(path: Path, curve: ec.EllipticCurve | None = None) -> str:
    """A new private key at ``path``; its public one, PEM."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    pem, nothing = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, nothing))
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(pem, kind).decode()


class House(SignedFolder):
    """A folder, a publisher, and a server that trusts him for ``fin_*``, which must be signed."""

    def __init__(self, tmp: Path) -> None:
        self.private = tmp / "acme"
        self.public = pair(self.private)
        super().__init__(tmp, [self._key()], hidden=str(tmp))

    def _key(self, **changes: object) -> dict[str, object]:
        return {"id": "acme", "public_key": self.public, "adapters": ["fin_*"], **changes}

    def trust(self, **changes: object) -> None:
        self.write_keys([self._key(**changes)])

    @property
    def bundle(self) -> Path:
        return self.folder / BUNDLE_FILE

    def sign(self, private: Path | None = None, lora_id: str = NAME) -> None:
        found = {file.name: file.sha256 for file in seal.manifest(self.folder, BUNDLE_FILE)}
        self.bundle.write_text(oms_library.sign(private or self.private, lora_id, found))

    def change(self, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
        """Edits bundle and statement, without signing them again."""
        outer = json.loads(self.bundle.read_text())
        envelope = outer["dsseEnvelope"]
        statement = json.loads(base64.b64decode(envelope["payload"]))
        change(outer, statement)
        envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        self.bundle.write_text(json.dumps(outer))
