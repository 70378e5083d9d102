"""Who calls: the credential in a request, and the principal behind it."""

from __future__ import annotations

import hashlib
from typing import Any

from ensemble import parameters
from ensemble.access import Policy, Principal
from python_backend.errors import Unauthenticated
from python_backend.messages import RawRequest

#: Longest credential that is looked at, characters or bytes.
MAX_CREDENTIAL = 4096

_REFUSED = "a valid API key is needed."
_DIFFER = "the request carries two credentials that differ."
_BEARER = "bearer "


def identify(raw: RawRequest, policy: Policy) -> Principal:
    """The principal whose key the request carries.

    Looked for in the ``credential`` tensor and in the parameters ``authorization`` (with or
    without ``Bearer``) and ``x-api-key``, which is how forwarded headers arrive.

    Raises:
        Unauthenticated: no credential, an unknown or unreadable one (the same sentence for all
            of these), or two that differ.
    """
    keys = [] if raw.credential is None else [_key(raw.credential)]
    keys += [_key(value) for value in parameters.given(raw.parameters, "x-api-key")]
    keys += [
        _key(_without_scheme(value)) for value in parameters.given(raw.parameters, "authorization")
    ]
    if not keys:
        raise Unauthenticated(_REFUSED)
    digests = {hashlib.sha256(key).digest() for key in keys}
    if len(digests) > 1:
        raise Unauthenticated(_DIFFER)
    principal = policy.by_key_digest(digests.pop())
    if principal is None:
        raise Unauthenticated(_REFUSED)
    return principal


def _without_scheme(value: Any) -> Any:
    if isinstance(value, str) and value[: len(_BEARER)].lower() == _BEARER:
        return value[len(_BEARER) :].strip(" ")
    return value


def _key(value: Any) -> bytes:
    """The bytes of a credential, whatever it came as."""
    if not isinstance(value, str | bytes) or not 0 < len(value) <= MAX_CREDENTIAL:
        raise Unauthenticated(_REFUSED)
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        value.decode("utf-8")
        return value
    except UnicodeError:
        raise Unauthenticated(_REFUSED) from None
