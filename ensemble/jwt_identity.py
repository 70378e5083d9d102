"""JSON web tokens: is this one genuine, for us, and valid now."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jwt

from ensemble.jwt_keys import KeyRing
from ensemble.jwt_settings import JwtSettings

#: Reasons by PyJWT's exceptions; the first that fits.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (jwt.InvalidSignatureError, "token_signature"),
    (jwt.InvalidIssuerError, "token_issuer"),
    (jwt.InvalidAudienceError, "token_audience"),
    (jwt.MissingRequiredClaimError, "token_claims"),
    (jwt.InvalidAlgorithmError, "token_algorithm"),
)


class TokenRefused(Exception):
    """A token that proves nothing; ``reason`` is for log and audit."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def looks_like_a_token(credential: str) -> bool:
    """Whether a credential has the shape of a signed token: three non-empty parts in ASCII.

    An API key is looked up before anybody asks this, so no shape of key is lost by it.
    """
    parts = credential.split(".", 3)
    return len(parts) == 3 and all(parts) and credential.isascii()


class TokenVerifier:
    """Verifies tokens by the policy's ``jwt`` section. Thread-safe.

    Args:
        folder: what the key file's path is relative to.

    Raises:
        KeyFileError: the key file cannot be used.
    """

    def __init__(self, settings: JwtSettings, folder: Path) -> None:
        self.settings = settings
        self.keys = KeyRing(settings, folder)

    def claims(self, token: str, now_s: float) -> dict[str, Any]:
        """The claims of a genuine token.

        Args:
            now_s: the wall clock, Unix seconds.

        Raises:
            TokenRefused: it is not genuine, not for us, or not valid now.
        """
        try:
            header = jwt.get_unverified_header(token)
        except Exception:  # a stranger wrote it: whatever reading it raises, it is malformed
            raise TokenRefused("token_malformed") from None
        algorithm = header.get("alg")
        if algorithm not in self.settings.algorithms:
            raise TokenRefused("token_algorithm")
        if "crit" in header:  # extensions that must be understood, and we understand none
            raise TokenRefused("token_malformed")
        key = self.keys.find(algorithm, header.get("kid"))
        if key is None:
            raise TokenRefused("token_key_unknown")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=self.settings.issuer,
                audience=self.settings.audience,
                options={
                    "require": ["exp", "iss", "aud"],
                    # Times are looked at below, by the clock we were given.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except Exception as error:
            kinds = (reason for kind, reason in _REASONS if isinstance(error, kind))
            raise TokenRefused(next(kinds, "token_malformed")) from None
        _check_times(claims, now_s, self.settings.leeway_s)
        return claims


def _check_times(claims: dict[str, Any], now_s: float, leeway_s: float) -> None:
    expires = _time(claims, "exp")
    if expires is None or now_s >= expires + leeway_s:
        raise TokenRefused("token_expired")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and now_s < begins - leeway_s:
            raise TokenRefused("token_not_yet_valid")


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        raise TokenRefused("token_claims")
    if not math.isfinite(value):
        raise TokenRefused("token_claims")
    return float(value)
