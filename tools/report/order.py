"""Who enters the simulated engine when: the server's own admission, set as a run had it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from loadtests.configurations import FAIR_QUEUE
from python_backend.admission.scheduler import Scheduler
from python_backend.admission_settings import AdmissionSettings

#: Protections that decide who enters the engine when.
RESERVE = "seats and slots in reserve"
SMALL_STEPS = "small steps beside small callers"


@dataclasses.dataclass(frozen=True)
class Room:
    """What a server's engine has room for at once: sequences, adapters."""

    seats: int = 16
    slots: int = 4


@dataclasses.dataclass(frozen=True)
class Order:
    """How requests enter the engine."""

    fair: bool = True
    reserve: bool = True
    small_steps: bool = True

    @classmethod
    def of(cls, protections: Mapping[str, bool]) -> Order:
        """As a run had it; what it does not name is on."""
        return cls(*(protections.get(name, True) for name in (FAIR_QUEUE, RESERVE, SMALL_STEPS)))

    def __str__(self) -> str:
        if not self.fair:
            return "one queue for all"
        return "in turn" if self.reserve else "in turn, nothing in reserve"

    def chooser(self, room: Room) -> Scheduler:
        """The server's own admission, set so."""
        changed: dict[str, Any] = {}
        if not self.reserve:
            changed |= {"reserve_seats": 0, "reserve_slots": 0}
        if not self.small_steps:
            changed["burst"] = None
        settings = AdmissionSettings.model_validate(changed)
        limits = settings.limits(seats=room.seats, slots=room.slots, max_pending=sys.maxsize)
        return Scheduler(limits)
