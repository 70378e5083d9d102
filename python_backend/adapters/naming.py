"""The one grammar of adapter names (design: department_business_version).

Used by the router, the access list, the catalog, metrics and storage alike, so that two spellings
can never reach one adapter.
"""

from __future__ import annotations

import re

from python_backend.errors import InvalidArgument

#: The base model's public name.
BASE = "base"
#: Names that no adapter and no alias may have.
RESERVED = frozenset({BASE, "none", "default", "all"})
MAX_LENGTH = 64

_LORA_ID = re.compile(r"[a-z][a-z0-9]{1,15}(?:_[a-z0-9]{1,24}){1,3}_v[0-9]{1,4}", re.ASCII)
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def is_lora_id(name: str) -> bool:
    """Whether ``name`` is a well-formed ``lora_id``, such as ``fin_risk_v2``."""
    return len(name) <= MAX_LENGTH and name not in RESERVED and bool(_LORA_ID.fullmatch(name))


def is_alias(name: str) -> bool:
    """Whether ``name`` may be used as an alias: a free ASCII name that is not reserved."""
    return name not in RESERVED and bool(_ALIAS.fullmatch(name))


def department_of(lora_id: str) -> str:
    """The owning department: the first segment of a well-formed ``lora_id``."""
    return lora_id.split("_", 1)[0]


def check_lora_id(name: str, *, field: str = "lora_id") -> str:
    """``name``, if it is a well-formed lora_id.

    Raises:
        InvalidArgument: it is not; the message never repeats the name.
    """
    if name in RESERVED:
        raise InvalidArgument(field, "this name is reserved")
    if not is_lora_id(name):
        raise InvalidArgument(
            field,
            "not a lora_id: department_business_version in lower-case ASCII letters and digits, "
            f"such as fin_risk_v2, at most {MAX_LENGTH} characters",
        )
    return name


def engine_name(lora_id: str, digest: str) -> str:
    """The name the engine knows a version by: ``lora_id@digest12``.

    The digest is part of the name because vLLM's prefix cache is keyed by name, not by content.
    """
    return f"{lora_id}@{digest[:12]}"
