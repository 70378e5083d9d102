"""Key files and key sets."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from ensemble.access import PolicyError
from ensemble.policy_source import PolicySource
from tests.unit.ensemble.tokens import (
    EC_KEY,
    ED_KEY,
    OTHER_RSA,
    RSA_KEY,
    SECRET,
    WEAK_RSA,
    Make,
    call,
    pem,
    refused,
    token,
    with_hmac,
)


def test_hmac_tokens(make_policy: Make) -> None:
    policy = make_policy(SECRET + b"\n", algorithms=["HS256"])
    assert call(policy, token(SECRET, "HS256")).principal.name == "alice"
    assert refused(policy, token(b"t" * 40, "HS256")) == "token_signature"
    with pytest.raises(PolicyError, match="shorter than 32 bytes"):
        make_policy(b"short", algorithms=["HS256"])


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(EC_KEY, "ES256"), (ED_KEY, "EdDSA"), (RSA_KEY, "PS256"), (RSA_KEY, "RS512")],
)
def test_other_public_keys(make_policy: Make, key: Any, algorithm: str) -> None:
    policy = make_policy(pem(key), algorithms=[algorithm])
    assert call(policy, token(key, algorithm)).principal.name == "alice"


@pytest.mark.parametrize(
    ("key", "changes", "says"),
    [
        (b"garbage", {}, "not a public key in PEM"),
        (b"", {}, "not a public key in PEM"),
        (pem(WEAK_RSA), {}, "fits none of RS256"),
        (pem(EC_KEY), {}, "fits none of RS256"),
        (pem(EC_KEY), {"algorithms": ["ES384"]}, "fits none of ES384"),
        (
            RSA_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            {},
            "not a public key in PEM",
        ),
        (b"{}", {"key_file": None, "jwks_file": "key.pem"}, "not a JSON Web Key Set"),
        (b'{"keys": []}', {"key_file": None, "jwks_file": "key.pem"}, "no public key for"),
        (b'{"keys": [1]}', {"key_file": None, "jwks_file": "key.pem"}, "not a JSON Web Key"),
        (None, {"key_file": "gone.pem"}, "gone.pem: No such file"),
        (None, {"key_file": "."}, "not a key file"),
        (None, {"key_file": None}, "exactly one of key_file and jwks_file"),
        (None, {"jwks_file": "key.pem"}, "exactly one of key_file and jwks_file"),
        (None, {"issuer": None}, "jwt.issuer"),
        (None, {"audience": None}, "jwt.audience"),
        (None, {"algorithms": []}, "jwt.algorithms"),
        (None, {"leeway_s": 301}, "jwt.leeway_s"),
        (None, {"extra": 1}, "jwt.extra"),
    ],
)
def test_sections_that_stop_the_start(
    make_policy: Make, key: bytes | None, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(PolicyError) as error:
        make_policy(key, **changes)
    assert says in str(error.value)


def jwks(*keys: tuple[Any, dict[str, Any]]) -> bytes:
    found = []
    for key, extra in keys:
        kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
        found.append({**json.loads(kind.to_jwk(key.public_key())), **extra})
    return json.dumps({"keys": found}).encode()


SET = {"key_file": None, "jwks_file": "key.pem", "algorithms": ["RS256", "ES256"]}


def test_keys_are_chosen_by_kid(make_policy: Make) -> None:
    policy = make_policy(
        jwks((RSA_KEY, {"kid": "one"}), (EC_KEY, {"kid": "two", "alg": "ES256"})), **SET
    )
    assert call(policy, token(headers={"kid": "one"})).principal.name == "alice"
    assert call(policy, token(EC_KEY, "ES256", {"kid": "two"})).principal.name == "alice"
    assert refused(policy, token()) == "token_key_unknown"
    assert refused(policy, token(headers={"kid": "three"})) == "token_key_unknown"
    assert refused(policy, token(headers={"kid": "two"})) == "token_key_unknown"
    assert refused(policy, token(OTHER_RSA, headers={"kid": "one"})) == "token_signature"


def test_a_single_key_needs_no_kid(make_policy: Make) -> None:
    policy = make_policy(jwks((RSA_KEY, {"use": "sig"}), (OTHER_RSA, {"use": "enc"})), **SET)
    assert call(policy, token()).principal.name == "alice"
    assert refused(policy, token(OTHER_RSA)) == "token_signature"


def test_shared_secrets_in_a_set_are_not_taken(make_policy: Make) -> None:
    oct_key = {"kty": "oct", "kid": "o", "k": base64.urlsafe_b64encode(SECRET).decode()}
    body = json.loads(jwks((RSA_KEY, {"kid": "one"})))
    body["keys"].append(oct_key)
    policy = make_policy(json.dumps(body).encode(), **SET)
    assert refused(policy, with_hmac(SECRET, {"alg": "HS256", "kid": "o"})) == "token_algorithm"


def test_a_kid_twice(make_policy: Make) -> None:
    with pytest.raises(PolicyError, match="given twice"):
        make_policy(jwks((RSA_KEY, {"kid": "one"}), (OTHER_RSA, {"kid": "one"})), **SET)


def test_keys_are_read_again_when_they_change(make_policy: Make, tmp_path: Path) -> None:
    make_policy()
    errors: list[str] = []
    source = PolicySource(tmp_path / "policy.yaml", on_error=errors.append)
    assert call(source.current(0.0), token()).principal.name == "alice"
    (tmp_path / "key.pem").write_bytes(pem(OTHER_RSA))
    policy = source.current(1.0)
    assert refused(policy, token()) == "token_signature"
    assert call(policy, token(OTHER_RSA)).principal.name == "alice"
    (tmp_path / "key.pem").write_bytes(b"broken")
    assert call(source.current(2.0), token(OTHER_RSA)).principal.name == "alice"
    assert len(errors) == 1 and source.error == errors[0]
    source.current(3.0)
    assert len(errors) == 1
    (tmp_path / "key.pem").write_bytes(pem(RSA_KEY) + b"\n")
    assert call(source.current(4.0), token()).principal.name == "alice"
    assert source.error is None
