"""Settings of the modes ``auto`` and ``distribution``: sections of ``fusion``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: Most tokens of a part that may be looked at.
MAX_CANDIDATES = 4096


class AutoSettings(BaseModel):
    """Weights that are computed for each prompt."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Folder of the trained gate; without, mode ``auto`` is refused.
    gate: Path | None = None
    #: Weights are multiples of it: few different mixtures exist then.
    grid: float = Field(default=0.05, gt=0, le=1, allow_inf_nan=False)
    #: Adapters in one computed mixture.
    max_parts: int = Field(default=3, ge=1)
    #: What weighs less is left out of it.
    least: float = Field(default=0.1, ge=0, lt=1, allow_inf_nan=False)

    @field_validator("grid")
    @classmethod
    def _divides_one(cls, grid: float) -> float:
        steps = round(1.0 / grid)
        # A weight has at most six decimals: with others the sum would not be kept.
        if abs(steps * grid - 1.0) > 1e-9 or 1_000_000 % steps:
            raise ValueError("must be a decimal that divides 1, such as 0.05")
        return grid

    @property
    def steps(self) -> int:
        """Steps of the grid from 0 to 1."""
        return round(1.0 / self.grid)


class DistributionSettings(BaseModel):
    """Next-token distributions that are mixed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Tokens that one answer may have.
    max_tokens: int = Field(default=256, ge=1)
    #: Parts of one answer, base among them where it has a share.
    max_parts: int = Field(default=3, ge=1, le=3)
    #: The likeliest tokens of each part that are looked at; 0: the mode is not served.
    candidates: int = Field(default=256, ge=0, le=MAX_CANDIDATES)
