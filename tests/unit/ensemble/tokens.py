"""Keys, tokens and the section ``jwt``, for tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ensemble.access import Policy
from ensemble.identity import Identity, identify
from python_backend.errors import Unauthenticated
from python_backend.messages import RawRequest

NOW = 1_800_000_000.0
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
SECRET = b"s" * 40


def pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def claims(**changes: Any) -> dict[str, Any]:
    body = {"iss": "idp", "aud": "lora", "sub": "alice", "department": "fin", "exp": NOW + 60}
    return {k: v for k, v in {**body, **changes}.items() if v is not None}


def token(key: Any = RSA_KEY, algorithm: str = "RS256", headers: Any = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers=headers)


def section(**changes: Any) -> dict[str, Any]:
    body = {
        "algorithms": ["RS256"], "issuer": "idp", "audience": "lora", "key_file": "key.pem",
        "department_claim": "department", "roles_claim": "roles",
    }  # fmt: skip
    return {k: v for k, v in {**body, **changes}.items() if v is not None}


Make = Callable[..., Policy]


def call(policy: Policy, credential: str, now_s: float = NOW) -> Identity:
    return identify(RawRequest(parameters={"authorization": f"Bearer {credential}"}), policy, now_s)


def refused(policy: Policy, credential: str, now_s: float = NOW) -> str:
    with pytest.raises(Unauthenticated) as error:
        call(policy, credential, now_s)
    assert error.value.message == "unauthenticated: a valid API key is needed."
    return error.value.reason


def unsigned(header: dict[str, Any], body: Any = None, mac: bytes = b"x") -> str:
    parts = [
        json.dumps(header).encode(),
        json.dumps(claims() if body is None else body).encode(),
        mac,
    ]
    return ".".join(base64.urlsafe_b64encode(p).rstrip(b"=").decode() for p in parts)


def with_hmac(secret: bytes, header: dict[str, Any], body: Any = None) -> str:
    """What PyJWT itself refuses to make: a MAC keyed with a public key."""
    head = unsigned(header, body).rsplit(".", 1)[0]
    mac = hmac.new(secret, head.encode(), hashlib.sha256).digest()
    return head + "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
