"""The policy file: who may use which adapter. Deny by default."""

from __future__ import annotations

import fnmatch
import hmac
import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from ensemble.jwt_identity import TokenVerifier
from ensemble.jwt_keys import KeyFileError
from ensemble.jwt_settings import JwtSettings
from ensemble.tenants import ApiKey, Department, Frozen, Principal, check_department
from python_backend.settings import explain

__all__ = ["Department", "Policy", "PolicyError", "Principal", "load_policy", "parse_policy"]


class PolicyError(Exception):
    """A policy file that cannot be used; the text names the file, the key and the cure."""


class Policy(Frozen):
    """Departments and principals, indexed so that a decision costs the same for any number."""

    version: Literal[1]
    departments: dict[str, Department]
    principals: tuple[Principal, ...] = Field(strict=False)
    jwt: JwtSettings | None = None
    _by_digest: dict[bytes, tuple[bytes, ApiKey, Principal]] = PrivateAttr(default_factory=dict)
    _by_subject: dict[str, Principal] = PrivateAttr(default_factory=dict)
    _names: set[str] = PrivateAttr(default_factory=set)
    _matchers: dict[str, re.Pattern[str]] = PrivateAttr(default_factory=dict)
    _tokens: TokenVerifier | None = PrivateAttr(default=None)

    @field_validator("departments")
    @classmethod
    def _department_names(cls, departments: dict[str, Department]) -> dict[str, Department]:
        for name in departments:
            check_department(name)
        return departments

    @model_validator(mode="after")
    def _index(self) -> Policy:
        for at, principal in enumerate(self.principals):
            where = f"principals.{at} ({principal.name})"
            if principal.department not in self.departments:
                raise ValueError(
                    f"{where}: no department {principal.department!r}; add it under departments"
                )
            if principal.name in self._names:
                raise ValueError(f"{where}: the name is used twice; give each principal its own")
            self._names.add(principal.name)
            self._index_proofs(where, principal)
        for name, department in self.departments.items():
            globs = "|".join(fnmatch.translate(glob) for glob in department.adapters)
            self._matchers[name] = re.compile(globs or r"(?!)")
        return self

    def _index_proofs(self, where: str, principal: Principal) -> None:
        for key in principal.api_key_sha256:
            digest = bytes.fromhex(key.sha256)
            if digest in self._by_digest:
                other = self._by_digest[digest][2].name
                raise ValueError(
                    f"{where}: api_key_sha256: this key is also {other}'s; make a new key"
                )
            self._by_digest[digest] = (digest, key, principal)
        if (subject := principal.jwt_subject) is not None:
            if self.jwt is None:
                raise ValueError(f"{where}: jwt_subject: there is no section jwt")
            if subject in self._by_subject:
                other = self._by_subject[subject].name
                raise ValueError(f"{where}: jwt_subject: this subject is also {other}'s")
            self._by_subject[subject] = principal

    @property
    def tokens(self) -> TokenVerifier | None:
        """Verifies JSON web tokens; None where the policy takes none."""
        return self._tokens

    def read_keys(self, folder: Path) -> None:
        """Makes ``tokens``; key files are relative to ``folder``. Raises ``KeyFileError``."""
        if self.jwt is not None:
            self._tokens = TokenVerifier(self.jwt, folder)

    def by_key_digest(self, digest: bytes) -> tuple[ApiKey, Principal] | None:
        """The key with this sha256 (32 bytes), expired or not, and whose it is; or None."""
        # The digest of a secret tells nobody the secret, so a dict may look it up; the compare
        # that decides is over bytes of one length and takes the same time wherever they differ.
        found = self._by_digest.get(digest)
        stored = bytes(32) if found is None else found[0]
        if not hmac.compare_digest(stored, digest) or found is None:
            return None
        return found[1], found[2]

    def by_subject(self, subject: str) -> Principal | None:
        """The principal with this ``jwt_subject``, or None."""
        return self._by_subject.get(subject)

    def has_principal(self, name: str) -> bool:
        """Whether a principal of this name is listed."""
        return name in self._names

    def may_use(self, principal: Principal, lora_id: str) -> bool:
        """Whether ``principal`` may use the adapter of this well-formed, resolved lora_id."""
        matcher = self._matchers.get(principal.department)
        return matcher is not None and matcher.match(lora_id) is not None

    def may_use_base(self, principal: Principal) -> bool:
        """Whether ``principal`` may use the base model without an adapter."""
        department = self.departments.get(principal.department)
        return department is not None and department.base

    def may_fuse(self, principal: Principal) -> bool:
        """Whether ``principal`` may mix adapters; each part needs ``may_use`` as well."""
        department = self.departments.get(principal.department)
        return department is not None and department.fusion


class UniqueKeyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML in which a key given twice is an error: the second would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) != len(keys):
            twice = Counter(keys).most_common(1)[0][0]
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice!r} is given twice", node.start_mark
            )
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def load_policy(path: Path) -> Policy:
    """The policy in ``path``, with the keys its ``jwt`` section names.

    Raises:
        PolicyError: the file is missing, is not YAML, or says something that cannot be right; or
            a key file cannot be used.
    """
    try:
        policy = parse_policy(path, path.read_text("utf-8"))
        policy.read_keys(path.resolve().parent)
        return policy
    except FileNotFoundError:
        raise PolicyError(
            f"{path}: no such file; `python -m tools demo` makes one, or correct the key `policy` "
            "of serving.yaml"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: cannot be read as YAML: {error}") from None
    except KeyFileError as error:
        raise PolicyError(f"{path}: jwt: {error}") from None


def parse_policy(path: Path, text: str) -> Policy:
    """The policy in ``text``, which stands in ``path``; no other file is read.

    Raises:
        PolicyError: it is not YAML, or says something that cannot be right.
    """
    try:
        raw = yaml.load(text, Loader=UniqueKeyLoader)  # noqa: S506 a safe loader
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise PolicyError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(raw, dict):
        raise PolicyError(f"{path}: must be a mapping with version, departments and principals")
    try:
        return Policy.model_validate(raw)
    except ValidationError as error:
        raise PolicyError(explain(path, error)) from None
