"""Aliases: free names that stand for a lora_id, and for a share of requests for another one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from python_backend.adapters import naming

_WHOLE = 1 << 64


class Route(BaseModel):
    """Where an alias leads; in settings a plain lora_id will do.

    ``share`` (0 to 1) of the requests go to ``canary``, the others to ``to``. Both belong to one
    department: a roll-out must not move a caller to somebody else's adapter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: str
    canary: str | None = None
    share: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"to": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _names(self) -> Route:
        for target in self.targets:
            if not naming.is_lora_id(target):
                raise ValueError(f"points to {target!r}, which is not a lora_id")
        if self.canary is None and self.share:
            raise ValueError("share without canary; name the lora_id that gets the share")
        if len({naming.department_of(target) for target in self.targets}) > 1:
            raise ValueError("to and canary belong to different departments")
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        """Every lora_id that a request may end at."""
        return (self.to,) if self.canary is None else (self.to, self.canary)

    def choose(self, uid: str) -> str:
        """The lora_id for one request; the same uid always gets the same one."""
        if self.canary is None:
            return self.to
        digest = hashlib.sha256(b"canary\0" + uid.encode()).digest()
        return self.canary if int.from_bytes(digest[:8], "big") < self.share * _WHOLE else self.to


def check_alias(alias: str, route: Route) -> None:
    """Raises ``ValueError`` where ``alias`` must not be the name of this route."""
    if not naming.is_alias(alias):
        raise ValueError(f"{alias!r} is reserved or not a plain ASCII name")
    if naming.is_lora_id(alias) and route.targets != (alias,):
        # An alias shaped like a lora_id would shadow an adapter of that name, and with it the
        # access rule written for that adapter.
        raise ValueError(f"{alias!r} is itself a lora_id; an alias must not look like one")


class Chosen:
    """Aliases as one request sees them: each stands for one lora_id.

    By the request's uid and not by who calls: a department has few principals, and a share of
    few is no share. Whoever must stay with one version names it.
    """

    def __init__(self, routes: Mapping[str, Route], uid: str) -> None:
        self._routes, self._uid = routes, uid

    def candidates(self, alias: str) -> tuple[str, ...]:
        """The lora_ids that the alias stands for, best first; none if there is no such alias.

        Behind a canary comes what it is tried against: who may not use it is no part of the trial.
        """
        route = self._routes.get(alias)
        if route is None:
            return ()
        chosen = route.choose(self._uid)
        return (chosen,) if chosen == route.to else (chosen, route.to)
