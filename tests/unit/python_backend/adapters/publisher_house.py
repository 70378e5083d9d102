"""A folder, a publisher who signs it with a key of his own, and a server that trusts him."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from python_backend.adapters import oms_library, seal, staging
from python_backend.adapters.rejection import AdapterRejected, Reason
from python_backend.adapters.seal import SignaturePolicy
from python_backend.adapters.signing import BUNDLE_FILE
from python_backend.adapters.signing_keys import KeyFile
from tests.badadapters import good, target

NAME = "fin_risk_v1"
NOW = 1_800_000_000.0
LIMIT = 64 << 20


def pair(path: Path, curve: ec.EllipticCurve | None = None) -> str:
    """A new private key at ``path``; its public one, PEM."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    pem, nothing = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, nothing))
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(pem, kind).decode()


class House:
    """A folder, a publisher, and a server that trusts him for ``fin_*``, which must be signed."""

    def __init__(self, tmp: Path) -> None:
        self.folder, self.staged, self.keys = tmp / NAME, tmp / "staged", tmp / "keys.yaml"
        self.now = NOW
        self.private = tmp / "acme"
        self.public = pair(self.private)
        good().write(self.folder)
        (self.folder / "README.md").write_text("about it")
        self.trust(adapters=["fin_*"])
        self.policy = SignaturePolicy(("fin_*",), KeyFile(self.keys), lambda: self.now)

    def trust(self, **changes: object) -> None:
        key = {"id": "acme", "public_key": self.public, "adapters": ["fin_*"], **changes}
        self.keys.touch(0o600)
        self.keys.write_text(yaml.safe_dump({"version": 1, "keys": [key]}))

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

    def stage(self, lora_id: str = NAME) -> staging.StagedAdapter:
        return staging.stage(
            self.folder, self.staged, target(), LIMIT, lora_id=lora_id, signatures=self.policy
        )

    def refuses(self, reason: Reason, *mentions: str, lora_id: str = NAME) -> None:
        with pytest.raises(AdapterRejected) as caught:
            self.stage(lora_id)
        assert caught.value.reason is reason, caught.value.text
        sentence = caught.value.sentence
        for words in mentions:
            assert words in sentence, sentence
        assert sentence.isascii() and str(self.folder.parent) not in sentence
        assert not list(self.staged.glob("*"))
