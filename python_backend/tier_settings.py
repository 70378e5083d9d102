"""The ``tiers`` section: where adapter weights may lie, and how much of them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, StrictInt, field_validator

from python_backend.adapters import naming


class TierSettings(BaseModel):
    """Budgets count adapters by the size of their weight file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Adapters in the engine's host cache, bytes. What is in use may exceed it: it is never
    #: refused for memory, but nothing idle stays beside it then.
    host_bytes: int = Field(default=2 << 30, gt=0)
    #: Copies of adapters in /dev/shm, bytes; 0: none. Never exceeded.
    shm_bytes: NonNegativeInt = 0
    #: After which a use counts half in an adapter's priority, seconds.
    half_life_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    #: Adapters to be read before anybody asks, at the start before the server is ready: all, the
    #: first so many by priority, or a list.
    warm: Literal["all"] | StrictInt | tuple[str, ...] = 0

    @field_validator("warm")
    @classmethod
    def _warm(
        cls, warm: Literal["all"] | int | tuple[str, ...]
    ) -> Literal["all"] | int | tuple[str, ...]:
        if isinstance(warm, int) and warm < 0:
            raise ValueError("must not be negative")
        for name in warm if isinstance(warm, tuple) else ():
            if not naming.is_lora_id(name):
                raise ValueError(f"{name!r} is not a lora_id")
        return warm
