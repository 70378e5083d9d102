"""Tokens: what is genuine, for us and valid now, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from ensemble.access import PolicyError
from ensemble.identity import identify
from python_backend.errors import Unauthenticated
from python_backend.messages import RawRequest
from tests.unit.ensemble.tokens import (
    EC_KEY,
    NOW,
    OTHER_RSA,
    RSA_KEY,
    SECRET,
    Make,
    call,
    claims,
    pem,
    refused,
    token,
    unsigned,
    with_hmac,
)


def test_by_claims(make_policy: Make) -> None:
    found = call(make_policy(), token(roles=["caller", "admin", "root"]))
    assert (found.principal.name, found.principal.department, found.via) == ("alice", "fin", "jwt")
    assert found.principal.roles == {"caller", "admin"}


@pytest.mark.parametrize(
    ("roles", "expected"),
    [("caller other", {"caller"}), ([], set()), (None, set()), (7, set()), ([["caller"]], set())],
)
def test_roles(make_policy: Make, roles: Any, expected: set[str]) -> None:
    assert call(make_policy(), token(roles=roles)).principal.roles == expected
    assert call(make_policy(roles_claim=None), token(roles=["admin"])).principal.roles == {"caller"}


def test_by_the_policys_subject(make_policy: Make) -> None:
    policy = make_policy(subject="alice", department_claim=None)
    assert call(policy, token(department="svc")).principal.name == "fin-app"
    assert refused(policy, token(sub="bob")) == "token_department"
    policy = make_policy(subject="alice")
    assert call(policy, token(department=None)).principal.name == "fin-app"
    assert refused(policy, token(department="svc")) == "token_department"


def test_another_principal_claim(make_policy: Make) -> None:
    policy = make_policy(principal_claim="client_id")
    assert call(policy, token(client_id="billing")).principal.name == "billing"
    assert refused(policy, token()) == "token_principal"


@pytest.mark.parametrize("where", ["credential", "x-api-key", "authorization", "Authorization"])
def test_from_every_source(make_policy: Make, where: str) -> None:
    sent = token()
    raw = (
        RawRequest(credential=sent.encode())
        if where == "credential"
        else RawRequest(parameters={where: sent})
    )
    assert identify(raw, make_policy(), NOW).principal.name == "alice"


def test_a_token_and_a_key_differ(make_policy: Make) -> None:
    raw = RawRequest(credential=b"fin-key", parameters={"authorization": token()})
    with pytest.raises(Unauthenticated, match="two credentials that differ"):
        identify(raw, make_policy(), NOW)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW - 11}, "token_expired"),
        ({"exp": None}, "token_claims"),
        ({"exp": True}, "token_claims"),
        ({"exp": "soon"}, "token_claims"),
        ({"exp": str(NOW + 60)}, "token_claims"),
        ({"exp": 1e300}, "token_claims"),
        ({"exp": float("inf")}, "token_claims"),
        ({"exp": float("nan")}, "token_expired|token_claims"),
        ({"nbf": NOW + 11}, "token_not_yet_valid"),
        ({"iat": NOW + 11}, "token_not_yet_valid"),
        ({"iss": "other"}, "token_issuer"),
        ({"iss": None}, "token_claims"),
        ({"aud": "other"}, "token_audience"),
        ({"aud": None}, "token_claims"),
        ({"department": "gone"}, "token_department"),
        ({"department": None}, "token_department"),
        ({"department": ["fin"]}, "token_department"),
        ({"department": "anonymous"}, "token_department"),
        ({"sub": None}, "token_principal"),
        ({"sub": ""}, "token_principal"),
        ({"sub": "fin-app"}, "token_principal"),
        ({"sub": "admin"}, "token_principal"),
        ({"sub": "a\nb"}, "token_principal"),
        ({"sub": "x" * 65}, "token_principal"),
    ],
)
def test_claims_that_are_refused(make_policy: Make, changes: dict[str, Any], reason: str) -> None:
    assert refused(make_policy(), token(**changes)) in reason.split("|")


@pytest.mark.parametrize("changes", [{"exp": NOW - 9}, {"nbf": NOW + 9}, {"iat": NOW + 9}])
def test_leeway(make_policy: Make, changes: dict[str, Any]) -> None:
    policy = make_policy()
    assert call(policy, token(**changes)).principal.name == "alice"
    strict = make_policy(leeway_s=0)
    assert refused(strict, token(**changes)).startswith("token_")


class TestConfusion:
    @pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None, 7, ["RS256"]])
    @pytest.mark.parametrize("mac", [b"", b"x"])
    def test_none(self, make_policy: Make, alg: Any, mac: bytes) -> None:
        assert refused(make_policy(), unsigned({"alg": alg}, mac=mac)) in (
            "token_algorithm", "token_malformed", "unknown_key",
        )  # fmt: skip

    def test_a_public_key_as_hmac_secret(self, make_policy: Make) -> None:
        policy = make_policy()
        for secret in (pem(RSA_KEY), pem(RSA_KEY).strip(), RSAAlgorithm.to_jwk(
            RSA_KEY.public_key()
        ).encode()):  # fmt: skip
            assert refused(policy, with_hmac(secret, {"alg": "HS256"})) == "token_algorithm"

    def test_a_public_key_file_is_no_secret(self, make_policy: Make) -> None:
        for key in (
            pem(RSA_KEY),
            RSAAlgorithm.to_jwk(RSA_KEY.public_key()).encode(),
            b"ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 someone@somewhere",
        ):
            with pytest.raises(PolicyError, match="needs a secret of random bytes"):
                make_policy(key, algorithms=["HS256"])

    def test_algorithms_are_not_mixed(self, make_policy: Make) -> None:
        with pytest.raises(PolicyError, match="cannot be mixed"):
            make_policy(algorithms=["HS256", "RS256"])

    @pytest.mark.parametrize("alg", ["none", "HS1", "RS1", "ES256K"])
    def test_other_algorithms_are_unknown(self, make_policy: Make, alg: str) -> None:
        with pytest.raises(PolicyError, match=r"jwt\.algorithms"):
            make_policy(algorithms=[alg])

    def test_an_algorithm_not_on_the_list(self, make_policy: Make) -> None:
        assert refused(make_policy(), token(algorithm="RS512")) == "token_algorithm"
        assert refused(make_policy(), token(EC_KEY, "ES256")) == "token_algorithm"

    def test_keys_the_token_brings_along(self, make_policy: Make) -> None:
        jwk = json.loads(RSAAlgorithm.to_jwk(OTHER_RSA.public_key()))
        headers = {"jwk": jwk, "jku": "http://127.0.0.1:1/keys", "x5u": "file:///etc/passwd"}
        assert refused(make_policy(), token(OTHER_RSA, headers=headers)) == "token_signature"

    def test_critical_extensions(self, make_policy: Make) -> None:
        sent = token(headers={"crit": ["b64"], "b64": True})
        assert refused(make_policy(), sent) == "token_malformed"

    def test_cut_and_changed(self, make_policy: Make) -> None:
        policy, sent = make_policy(), token()
        head, body, mac = sent.split(".")
        other = unsigned({}, claims(department="svc")).split(".")[1]
        for changed in (
            f"{head}.{other}.{mac}",
            f"{head}.{body}.{mac[:-4]}",
            f"{head}.{body}.",
            f"{head}.{body}",
            f"{head}..{mac}",
            f"{sent}.x",
            sent + "\n",
            sent.replace(".", " . "),
        ):
            with pytest.raises(Unauthenticated):
                call(policy, changed)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
@given(
    header=st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "zip"]), JSON),
    body=JSON,
    mac=st.binary(max_size=20),
    text=st.text(max_size=30),
    shape=st.integers(0, 2),
)
def test_whatever_a_stranger_sends_is_refused(
    make_policy: Make, header: Any, body: Any, mac: bytes, text: str, shape: int
) -> None:
    policy = make_policy()
    sent = unsigned(header, body, mac) if shape else text
    if shape == 2:
        sent = sent.replace("e", ".", 1)
    with pytest.raises(Unauthenticated):
        call(policy, sent)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
@given(body=JSON.filter(lambda body: body is not None))
def test_whatever_the_issuer_signs_is_judged(make_policy: Make, body: Any) -> None:
    policy = make_policy(SECRET, algorithms=["HS256"])
    sent = with_hmac(SECRET, {"alg": "HS256"}, body)
    with pytest.raises(Unauthenticated):
        call(policy, sent)
