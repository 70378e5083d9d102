"""Settings of the breakers: one section of ``serving.yaml``. The defaults are design decisions:
a switch costs the time of some steps, 30 % of a pool in fragments is what a large adapter no longer
fits into, 100 ms is a pause that callers notice, and 3 % wrong answers are 3 % too many.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from python_backend.breaker import Rule


class _Thresholds(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The signal is shown and its breaker moves, but nothing is refused.
    enforce: bool = True

    @model_validator(mode="after")
    def _ascending(self) -> _Thresholds:
        self.rule()
        return self

    def rule(self) -> Rule:
        """The breaker's rule. Raises ``ValueError`` where the numbers contradict each other."""
        raise NotImplementedError


class _Level(_Thresholds):
    """A signal that must stay below ``close`` for ``hold_s`` seconds."""

    warning: float
    open: float
    close: float
    hold_s: float = Field(gt=0, allow_inf_nan=False)

    def rule(self) -> Rule:
        """See ``_Thresholds.rule``."""
        return Rule(self.warning, self.open, self.close, hold_s=self.hold_s)


class SwitchRate(_Level):
    """Times that a slot got another adapter, per second, over the last 10 s.

    ``of: time_share``: the share of these 10 s that the engine spent on activations, 0 to 1, rules
    instead, and the thresholds are shares: what a switch costs differs a lot between devices.
    """

    of: Literal["rate", "time_share"] = "rate"
    warning: float = 3.0
    open: float = 5.0
    close: float = 2.0
    hold_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _shares(self) -> SwitchRate:
        if self.of == "time_share" and self.open > 1:
            raise ValueError("of time_share the thresholds are shares: none may be above 1")
        return self


class Fragmentation(_Level):
    """1 − allocated / reserved of the device's allocator, sampled every 5 s."""

    warning: float = 0.20
    open: float = 0.30
    close: float = 0.15
    hold_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)


class LoadLatency(_Thresholds):
    """Seconds: the median of the last 10 loads of adapters into the host's memory.

    ``of: seconds_per_mib``: that time over the size of the weights governs instead.
    """

    of: Literal["seconds", "seconds_per_mib"] = "seconds"
    warning: float = 0.050
    open: float = 0.100
    close: float = 0.030
    in_a_row: int = Field(default=10, gt=0)

    def rule(self) -> Rule:
        """See ``_Thresholds.rule``."""
        return Rule(self.warning, self.open, self.close, in_a_row=self.in_a_row)


class Routing(_Thresholds):
    """Wrong answers of the last 1,000 of one adapter, as a share, from 100 on."""

    warning: float = 0.01
    open: float = 0.03
    in_a_row: int = Field(default=100, gt=0)

    def rule(self) -> Rule:
        """See ``_Thresholds.rule``."""
        return Rule(self.warning, self.open, self.warning, in_a_row=self.in_a_row)


class BreakerSettings(BaseModel):
    """One rule for each signal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    switch_rate: SwitchRate = SwitchRate()
    fragmentation: Fragmentation = Fragmentation()
    load_latency: LoadLatency = LoadLatency()
    routing: Routing = Routing()
