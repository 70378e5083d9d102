"""Who calls: the credential in a request, and the principal behind it."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Literal

from ensemble import parameters
from ensemble.access import Policy, Principal
from ensemble.jwt_identity import TokenRefused, TokenVerifier, looks_like_a_token
from ensemble.tenants import Role, anonymous, is_principal_name
from python_backend.errors import Unauthenticated
from python_backend.messages import RawRequest

#: Longest credential that is looked at, characters or bytes.
MAX_CREDENTIAL = 8192

_REFUSED = "a valid API key is needed."
_DIFFER = "the request carries two credentials that differ."
_BEARER = "bearer "
_ROLES: tuple[Role, ...] = ("caller", "admin")


@dataclasses.dataclass(frozen=True)
class Identity:
    """Who calls, and by what that was proved."""

    principal: Principal
    via: Literal["api_key", "jwt", "nothing"]


def nobody() -> Identity:
    """A caller who has proved nothing and is let through all the same."""
    return Identity(anonymous(), "nothing")


def identify(raw: RawRequest, policy: Policy, now_s: float) -> Identity:
    """Whose API key or token the request carries.

    Looked for in the ``credential`` tensor and in the parameters ``authorization`` (with or
    without ``Bearer``) and ``x-api-key``, which is how forwarded headers arrive. A credential is
    an API key if the policy knows its digest; only what is no known key can be a token.

    Args:
        now_s: the wall clock, Unix seconds.

    Raises:
        Unauthenticated: no credential, an unknown, expired or unreadable one (the same sentence
            for all of these), or two that differ. ``reason`` says which, for the audit.
    """
    found = [] if raw.credential is None else [_read(raw.credential)]
    found += [_read(value) for value in parameters.given(raw.parameters, "x-api-key")]
    found += [
        _read(_without_scheme(value)) for value in parameters.given(raw.parameters, "authorization")
    ]
    if not found:
        raise _refusal("no_credential")
    digests = {hashlib.sha256(credential).digest() for credential in found}
    if len(digests) > 1:
        raise _refusal("credentials_differ", _DIFFER)
    known = policy.by_key_digest(digests.pop())
    if known is not None:
        key, principal = known
        if key.expires is not None and now_s >= key.expires:
            raise _refusal("key_expired")
        return Identity(principal, "api_key")
    credential = found[0].decode("utf-8")
    if policy.tokens is None or not looks_like_a_token(credential):
        raise _refusal("unknown_key")
    try:
        return Identity(_by_token(credential, policy, policy.tokens, now_s), "jwt")
    except TokenRefused as refused:
        raise _refusal(refused.reason) from None


def _by_token(token: str, policy: Policy, tokens: TokenVerifier, now_s: float) -> Principal:
    """The principal a token speaks for: one of the policy's, or one made of its claims."""
    claims, settings = tokens.claims(token, now_s), tokens.settings
    subject = claims.get(settings.principal_claim)
    if not isinstance(subject, str) or not subject:
        raise TokenRefused("token_principal")
    claimed = None if settings.department_claim is None else claims.get(settings.department_claim)
    if (listed := policy.by_subject(subject)) is not None:
        if claimed is not None and claimed != listed.department:
            raise TokenRefused("token_department")
        return listed
    if not isinstance(claimed, str) or claimed not in policy.departments:
        raise TokenRefused("token_department")
    # A token must not take the name of somebody whom the policy knows by another proof.
    if not is_principal_name(subject) or policy.has_principal(subject):
        raise TokenRefused("token_principal")
    roles: frozenset[Role] = frozenset({"caller"})
    if settings.roles_claim is not None:
        roles = _roles(claims.get(settings.roles_claim))
    return Principal(name=subject, department=claimed, roles=roles)


def _roles(claimed: Any) -> frozenset[Role]:
    """The roles we know among those claimed, in a list or in words of a string."""
    words = claimed.split() if isinstance(claimed, str) else claimed
    if not isinstance(words, list):
        return frozenset()
    return frozenset(role for role in _ROLES if role in words)


def _refusal(reason: str, sentence: str = _REFUSED) -> Unauthenticated:
    error = Unauthenticated(sentence)
    error.reason = reason
    return error


def _without_scheme(value: Any) -> Any:
    if isinstance(value, str) and value[: len(_BEARER)].lower() == _BEARER:
        return value[len(_BEARER) :].strip(" ")
    return value


def _read(value: Any) -> bytes:
    """The bytes of a credential, whatever it came as."""
    if not isinstance(value, str | bytes) or not 0 < len(value) <= MAX_CREDENTIAL:
        raise _refusal("unreadable_credential")
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        value.decode("utf-8")
        return value
    except UnicodeError:
        raise _refusal("unreadable_credential") from None
