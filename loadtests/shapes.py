"""How many users there are when: ramp, step, soak, burst, on/off. Pure; times are seconds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Users = Annotated[int, Field(ge=0)]


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Soak(_Shape):
    """The same all the time."""

    kind: Literal["soak"] = "soak"
    users: Users

    def at(self, t: float) -> int:
        """Users ``t`` seconds after the start."""
        return self.users


class Ramp(_Shape):
    """From none to all, a straight line of ``over_s``; then all."""

    kind: Literal["ramp"] = "ramp"
    users: Users
    over_s: float = Field(gt=0, allow_inf_nan=False)

    def at(self, t: float) -> int:
        """Users ``t`` seconds after the start."""
        return min(self.users, int(self.users * t / self.over_s))


class Step(_Shape):
    """``before`` until ``after_s``, then ``users``."""

    kind: Literal["step"] = "step"
    users: Users
    after_s: Seconds
    before: Users = 0

    def at(self, t: float) -> int:
        """Users ``t`` seconds after the start."""
        return self.users if t >= self.after_s else self.before


class Burst(_Shape):
    """``base``, but ``users`` for ``for_s`` from ``from_s`` on."""

    kind: Literal["burst"] = "burst"
    users: Users
    from_s: Seconds
    for_s: Seconds
    base: Users = 0

    def at(self, t: float) -> int:
        """Users ``t`` seconds after the start."""
        return self.users if self.from_s <= t < self.from_s + self.for_s else self.base


class OnOff(_Shape):
    """``users`` for ``on_s``, none for ``off_s``, and again."""

    kind: Literal["on_off"] = "on_off"
    users: Users
    on_s: float = Field(gt=0, allow_inf_nan=False)
    off_s: Seconds

    def at(self, t: float) -> int:
        """Users ``t`` seconds after the start."""
        return self.users if t % (self.on_s + self.off_s) < self.on_s else 0


Shape = Annotated[Soak | Ramp | Step | Burst | OnOff, Field(discriminator="kind")]
