"""What admission may give away: the engine's room, the queue's bounds, each department's share."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Share:
    """What one department gets.

    ``weight`` is its share while others wait too, relative to theirs. ``concurrency`` counts
    sequences in the engine at once, ``tokens_per_minute`` tokens read and written; None is no
    bound.
    """

    weight: float = 1.0
    concurrency: int | None = None
    tokens_per_minute: int | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """The room there is.

    Args:
        seats: sequences in the engine at once (vLLM's ``max_num_seqs``); a request with n
            sequences takes n.
        slots: distinct adapters in the engine at once (vLLM's ``max_loras``); base takes none.
        reserve_seats: seats on top of ``seats`` for departments that have nothing in the engine.
            The engine is started with room for them: they cost memory for a sequence each, and
            no throughput.
        reserve_slots: slots out of ``slots`` that are kept free for departments that have used an
            adapter within ``memory_s`` and have nothing in the engine. They cost throughput where
            the others could have filled a batch only with that many adapters more; nothing while
            there is no such department. One slot is always left.
        patience: admissions by which a request that waits for a slot may be late, before a slot
            is emptied for it; as many again for each ``slots`` adapters of its department that
            wait already (see ``fitting_patience``).
        affinity: how late a request may become because others that need no switch are let pass
            although there is a slot for it, in admissions; may be negative. What it saves in
            switches it costs in waiting.
        burst: how many times the steady rate of admissions (``seats`` over the mean length of an
            answer) may enter with one step. Answers that began together end together; were their
            successors all to begin together again, that step would be a long one for everybody
            (after Sarathi-Serve, "Taming Throughput-Latency Tradeoff in LLM Inference": prefills
            are spread so that no step is much longer than the others). Holds only while a
            department that was here within ``memory_s`` has one request at most, and never for
            one with nothing in the engine: the others gain nothing by it, and where slots are
            scarce, streams that end together leave theirs together.
        memory_s: how long a department that has gone is expected back, seconds.
        max_pending: sequences that wait or run, of all departments.
        max_pending_per_department: the same, of one.
        max_pending_tokens: prompt tokens that wait or run, of all departments.
    """

    seats: int
    slots: int
    reserve_seats: int = 1
    reserve_slots: int = 1
    patience: int = 16
    affinity: int = 0
    burst: float = math.inf
    memory_s: float = 600.0
    max_pending: int = 2048
    max_pending_per_department: int = 1024
    max_pending_tokens: int = 4_000_000

    @property
    def kept_slots(self) -> int:
        """Slots kept free while somebody is expected."""
        return max(0, min(self.reserve_slots, self.slots - 1))


def fitting_patience(seats: int, slots: int) -> int:
    """A patience that keeps batches full and lets nobody wait much longer than in order.

    So many pass while one batch is put together of ``slots`` adapters. With less, slots are emptied
    while the batch could still be filled; with more, adapters whose streams come back keep their
    slots (`tools simulate thrash`: with 16 seats and 4 slots throughput is lost below 12, and P99
    of the time to the first token doubles at 32).
    """
    return max(seats - slots, seats // 2)
