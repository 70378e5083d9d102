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
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from python_backend.settings import explain

_DEPARTMENT = re.compile(r"[a-z][a-z0-9]{1,15}", re.ASCII)
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_GLOB = re.compile(r"[a-z0-9_*?\[\]!-]{1,128}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)

Role = Literal["caller", "admin"]


class PolicyError(Exception):
    """A policy file that cannot be used; the text names the file, the key and the cure."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Department(_Frozen):
    """What the principals of one department may use."""

    #: Globs over lora_ids, such as ``fin_*``.
    adapters: tuple[str, ...] = Field(default=(), strict=False)
    #: Whether the base model may be used.
    base: bool = False
    fusion: bool = False

    @field_validator("adapters")
    @classmethod
    def _globs(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        for glob in globs:
            if not _GLOB.fullmatch(glob):
                raise ValueError(f"{glob!r} can match no lora_id; write a glob such as fin_*")
        return globs


class Principal(_Frozen):
    """One caller. ``api_key_sha256`` are the hex digests of its keys, several during rotation."""

    name: str
    department: str
    api_key_sha256: tuple[str, ...] = Field(default=(), strict=False, repr=False)
    roles: frozenset[Role] = Field(default=frozenset({"caller"}), strict=False)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not _PRINCIPAL.fullmatch(name):
            raise ValueError("a principal's name is 1-64 of A-Z a-z 0-9 . _ @ -")
        return name

    @field_validator("api_key_sha256", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("api_key_sha256")
    @classmethod
    def _hex(cls, digests: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_DIGEST.fullmatch(digest) for digest in digests):
            raise ValueError("not 64 hex digits; give the sha256 of the key, never the key itself")
        return tuple(digest.lower() for digest in digests)


class Policy(_Frozen):
    """Departments and principals, indexed so that a decision costs the same for any number."""

    version: Literal[1]
    departments: dict[str, Department]
    principals: tuple[Principal, ...] = Field(strict=False)
    _by_digest: dict[bytes, tuple[bytes, Principal]] = PrivateAttr(default_factory=dict)
    _matchers: dict[str, re.Pattern[str]] = PrivateAttr(default_factory=dict)

    @field_validator("departments")
    @classmethod
    def _department_names(cls, departments: dict[str, Department]) -> dict[str, Department]:
        for name in departments:
            if not _DEPARTMENT.fullmatch(name):
                raise ValueError(f"{name!r} is not a department name: [a-z][a-z0-9]{{1,15}}")
        return departments

    @model_validator(mode="after")
    def _index(self) -> Policy:
        names: set[str] = set()
        for at, principal in enumerate(self.principals):
            where = f"principals.{at} ({principal.name})"
            if principal.department not in self.departments:
                raise ValueError(
                    f"{where}: no department {principal.department!r}; add it under departments"
                )
            if principal.name in names:
                raise ValueError(f"{where}: the name is used twice; give each principal its own")
            names.add(principal.name)
            for text in principal.api_key_sha256:
                digest = bytes.fromhex(text)
                if digest in self._by_digest:
                    other = self._by_digest[digest][1].name
                    raise ValueError(
                        f"{where}: api_key_sha256: this key is also {other}'s; make a new key"
                    )
                self._by_digest[digest] = (digest, principal)
        for name, department in self.departments.items():
            globs = "|".join(fnmatch.translate(glob) for glob in department.adapters)
            self._matchers[name] = re.compile(globs or r"(?!)")
        return self

    def by_key_digest(self, digest: bytes) -> Principal | None:
        """The principal whose key has this sha256 (32 bytes), or None."""
        # The digest of a secret tells nobody the secret, so a dict may look it up; the compare
        # that decides is over bytes of one length and takes the same time wherever they differ.
        stored, principal = self._by_digest.get(digest, (bytes(32), None))
        return principal if hmac.compare_digest(stored, digest) else None

    def may_use(self, principal: Principal, lora_id: str) -> bool:
        """Whether ``principal`` may use the adapter of this well-formed, resolved lora_id."""
        matcher = self._matchers.get(principal.department)
        return matcher is not None and matcher.match(lora_id) is not None

    def may_use_base(self, principal: Principal) -> bool:
        """Whether ``principal`` may use the base model without an adapter."""
        department = self.departments.get(principal.department)
        return department is not None and department.base


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
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
    """The policy in ``path``.

    Raises:
        PolicyError: the file is missing, is not YAML, or says something that cannot be right.
    """
    try:
        raw = yaml.load(path.read_text("utf-8"), Loader=_Loader)  # noqa: S506 a safe loader
    except FileNotFoundError:
        raise PolicyError(
            f"{path}: no such file; `python -m tools demo` makes one, or correct the key `policy` "
            "of serving.yaml"
        ) from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise PolicyError(f"{path}: cannot be read as YAML: {error}") from None
    if not isinstance(raw, dict):
        raise PolicyError(f"{path}: must be a mapping with version, departments and principals")
    try:
        return Policy.model_validate(raw)
    except ValidationError as error:
        raise PolicyError(explain(path, error)) from None
