"""Settings of admission: one section of ``serving.yaml``."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from python_backend.admission.limits import Limits, fitting_patience


class AdmissionSettings(BaseModel):
    """How the engine is shared. Weights and bounds of single departments are in the policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Sequences beyond ``max_num_seqs``, for departments that have nothing in the engine. They
    #: cost the memory of a sequence each, and make a step longer only while they are used.
    reserve_seats: int = Field(default=1, ge=0)
    #: Slots of ``max_loras`` kept free for departments that have lately used an adapter and have
    #: nothing in the engine. Costs throughput where the others could fill a batch only with that
    #: many adapters more; nothing while one department is alone.
    reserve_slots: int = Field(default=1, ge=0)
    #: How long a department is expected back, seconds.
    memory_s: float = Field(default=600.0, ge=0, allow_inf_nan=False)
    #: How late a request that waits for a slot may become, in admissions, before one is emptied
    #: for it; None for what suits seats and slots.
    patience: int | None = Field(default=None, ge=0)
    #: How late a request for an adapter without a slot may become because requests that need no
    #: switch are let pass, in admissions.
    affinity: int = 0
    #: How many times the steady rate of admissions may enter with one step while a department has
    #: one request at most, so that it meets no long step; None for no limit.
    burst: float | None = Field(default=2.0, ge=1, allow_inf_nan=False)
    #: Sequences of one department in the engine and in front of it; beyond, ``overloaded``.
    max_pending_per_department: int = Field(default=1024, gt=0)
    #: Prompt tokens in the engine and in front of it; beyond, ``overloaded``.
    max_pending_tokens: int = Field(default=4_000_000, gt=0)
    #: How long requests may go on when the model is stopped, seconds; then they are cancelled.
    drain_s: float = Field(default=5.0, ge=0, allow_inf_nan=False)

    def limits(self, *, seats: int, slots: int, max_pending: int) -> Limits:
        """The room of an engine with so many seats (the reserve not counted) and slots."""
        return Limits(
            seats=seats,
            slots=slots,
            reserve_seats=self.reserve_seats,
            reserve_slots=self.reserve_slots,
            patience=fitting_patience(seats, slots) if self.patience is None else self.patience,
            affinity=self.affinity,
            burst=math.inf if self.burst is None else self.burst,
            memory_s=self.memory_s,
            max_pending=max_pending,
            max_pending_per_department=self.max_pending_per_department,
            max_pending_tokens=self.max_pending_tokens,
        )
