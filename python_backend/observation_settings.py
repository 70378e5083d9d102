"""The ``observation`` section: whether the engine is watched at all, and how often it is asked."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ObservationSettings(BaseModel):
    """What watching may cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Off: no signals, so no breaker ever moves, and no metrics of the engine's model. To compare.
    enabled: bool = True
    #: While nobody waits, one resident adapter is asked for its fingerprint so often, seconds; 0:
    #: never.
    canary_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
