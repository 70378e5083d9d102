"""The ``fusion`` section: what may be mixed, and how many mixtures are kept."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from python_backend.auto_settings import AutoSettings, DistributionSettings


class FusionSettings(BaseModel):
    """Bounds of mixtures of adapters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Adapters in one mixture.
    max_parts: int = Field(default=8, ge=1, le=64)
    #: Different mixtures that are ready or in use at once.
    max_live: int = Field(default=32, ge=1)
    #: Largest weight of an adapter, whatever its sign.
    max_weight: float = Field(default=2.0, gt=0, le=1000, allow_inf_nan=False)
    #: The least and the most that all weights may add up to; what is missing to 1 is the base
    #: model's share.
    min_sum: float = Field(default=0.0, allow_inf_nan=False)
    max_sum: float = Field(default=2.0, allow_inf_nan=False)
    auto: AutoSettings = AutoSettings()
    distribution: DistributionSettings = DistributionSettings()

    @model_validator(mode="after")
    def _a_range(self) -> FusionSettings:
        if self.min_sum > self.max_sum:
            raise ValueError("min_sum is above max_sum")
        return self
