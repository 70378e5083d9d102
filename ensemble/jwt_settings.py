"""The policy's section ``jwt``: which tokens prove who calls."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from ensemble.tenants import Frozen

Algorithm = Literal[
    "HS256", "HS384", "HS512",
    "RS256", "RS384", "RS512",
    "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512",
    "EdDSA",
]  # fmt: skip


class JwtSettings(Frozen):
    """What a token has to be like. Paths are relative to the policy file."""

    #: The only algorithms that are accepted. Those with a shared secret (HS…) and those with a
    #: public key never together: a public key is no secret.
    algorithms: tuple[Algorithm, ...] = Field(min_length=1, strict=False)
    issuer: str = Field(min_length=1)
    audience: str = Field(min_length=1)
    #: How far the issuer's clock may be from ours, seconds.
    leeway_s: float = Field(default=10.0, ge=0, le=300, allow_inf_nan=False)
    #: One key: a PEM public key, or, for HS…, a secret of at least 32 bytes.
    key_file: Path | None = Field(default=None, strict=False)
    #: Several public keys as a JSON Web Key Set, chosen by the token's ``kid``.
    jwks_file: Path | None = Field(default=None, strict=False)
    #: The claim that says who calls: a principal's ``jwt_subject``, or a name of its own.
    principal_claim: str = Field(default="sub", min_length=1)
    #: The claim that says the department of callers who are not listed; None: only listed ones.
    department_claim: str | None = Field(default=None, min_length=1)
    #: The claim with the roles of callers who are not listed; None: they are ``caller``.
    roles_claim: str | None = Field(default=None, min_length=1)

    @field_validator("leeway_s", mode="before")
    @classmethod
    def _seconds(cls, value: object) -> object:
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _one_kind_of_key(self) -> JwtSettings:
        if len({name.startswith("HS") for name in self.algorithms}) > 1:
            raise ValueError("algorithms: HS… and public-key algorithms cannot be mixed")
        if (self.key_file is None) == (self.jwks_file is None):
            raise ValueError("give exactly one of key_file and jwks_file")
        if self.symmetric and self.jwks_file is not None:
            raise ValueError("jwks_file holds public keys; HS… needs a key_file with a secret")
        return self

    @property
    def symmetric(self) -> bool:
        """Whether tokens are signed with a shared secret."""
        return self.algorithms[0].startswith("HS")
