"""How strictly the policy is applied, and the trace of a decision that the audit writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ensemble.identity import Identity
from python_backend.access_settings import AccessSettings, Control
from python_backend.adapters.aliases import Route
from python_backend.errors import NotFound
from python_backend.ticket import Part


@dataclasses.dataclass
class Trace:
    """What is known of a request so far; filled on the way to its decision."""

    identity: Identity | None = None
    #: The names of adapters as the caller wrote them; None until they have been read.
    asked: list[Any] | None = None
    #: The lora_id (or ``base``, or the mixture) they stand for.
    resolved: str = ""
    parts: tuple[Part, ...] = ()
    #: How they are mixed; empty where nothing is.
    mode: str = ""
    uid: str = ""
    prompt_sha256: str = ""
    deadline_s: float = 0.0
    #: What strict control would have refused it for.
    overlooked: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Enforcement:
    """What follows from the policy's verdicts.

    ``served`` are the lora_ids that this server serves at all, None for all; it holds whatever
    ``control`` is.
    """

    control: Control = "strict"
    served: frozenset[str] | None = None

    @classmethod
    def of(cls, settings: AccessSettings, aliases: Mapping[str, Route]) -> Enforcement:
        """What the settings say."""
        return cls(settings.control, settings.resolved(aliases))

    @property
    def strict(self) -> bool:
        """Whether what the policy does not allow is refused."""
        return self.control == "strict"

    def serves(self, lora_id: str) -> bool:
        """Whether this server serves the adapter to anybody."""
        return self.served is None or lora_id in self.served

    def require(self, allowed: bool, reason: str, trace: Trace) -> None:
        """Raises ``NotFound`` for what is not allowed, or notes it where that is let through."""
        if allowed:
            return
        if self.strict:
            raise self.refusal(reason)
        if self.control == "permissive":
            trace.overlooked.append(reason)

    @staticmethod
    def refusal(reason: str) -> NotFound:
        """The one refusal for all reasons; the reason is for the audit."""
        error = NotFound()
        error.reason = reason
        return error


STRICT = Enforcement()
