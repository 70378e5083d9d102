"""Settings of access and audit: two sections of ``serving.yaml``, and what overrides them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from python_backend.adapters import naming
from python_backend.adapters.aliases import Route

CONTROL_VARIABLE = "LORA_ACCESS_CONTROL"
ALLOWED_VARIABLE = "ALLOWED_LORA_IDS"

#: strict: what the policy does not allow is refused. permissive: it is let through, and audited.
#: off: nobody is asked who they are.
Control = Literal["strict", "permissive", "off"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AccessSettings(_Frozen):
    """How the policy is applied."""

    control: Control = "strict"
    #: Adapters that this server serves at all, by lora_id or alias, whatever the policy and
    #: ``control`` say; None for all. The base model is the policy's business alone.
    allowed_lora_ids: tuple[str, ...] | None = None

    @field_validator("control", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        # YAML reads a bare off as false; no value but off can have been meant.
        return "off" if value is False else value

    @field_validator("allowed_lora_ids")
    @classmethod
    def _names(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if not naming.is_lora_id(name) and not naming.is_alias(name):
                raise ValueError(f"{name!r} is neither a lora_id nor an alias")
        return names

    def resolved(self, aliases: Mapping[str, Route]) -> frozenset[str] | None:
        """The lora_ids that are served, or None for all.

        Raises:
            ValueError: a name is neither a lora_id nor one of ``aliases``.
        """
        if self.allowed_lora_ids is None:
            return None
        for name in self.allowed_lora_ids:
            if name not in aliases and not naming.is_lora_id(name):
                raise ValueError(f"access.allowed_lora_ids: {name!r} is no lora_id and no alias")
        return frozenset(
            target
            for name in self.allowed_lora_ids
            for target in (aliases[name].targets if name in aliases else (name,))
        )


class AuditSettings(_Frozen):
    """The audit trail, in the folder ``audit`` of the state dir."""

    enabled: bool = True
    #: When lines reach the disk: each by itself, once a second, or when the system likes. A killed
    #: process loses none either way; a machine without power loses what has not been synced.
    sync: Literal["line", "interval", "none"] = "interval"
    #: A file that has grown to this size is followed by the next, bytes.
    max_bytes: int = Field(default=64 << 20, ge=4096)
    #: Files kept of each model that writes; the oldest are removed.
    keep: int = Field(default=64, ge=2)


def overridden(raw: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """``raw`` (a whole settings file) with what the environment says about access."""
    found = raw.get("access") or {}
    if not isinstance(found, dict):
        return raw  # refused with the rest of the file
    access = dict(found)
    if control := environment.get(CONTROL_VARIABLE):
        access["control"] = control
    if (listed := environment.get(ALLOWED_VARIABLE)) is not None and listed.strip():
        access["allowed_lora_ids"] = tuple(
            name for part in listed.split(",") if (name := part.strip())
        )
    return {**raw, "access": access} if access else raw
