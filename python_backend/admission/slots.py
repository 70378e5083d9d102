"""Which adapters are in the engine's slots: in flight for certain, resident as far as we know."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class Slots:
    """Our model of vLLM's slots: least recently used goes first, what is in flight stays.

    The engine is the truth, but asking it costs a step; this is right as long as all work comes
    through admission, and ``correct`` sets it right where something else has used a slot.

    ``switches`` counts the times an adapter took the slot of another.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.switches = 0
        self._resident: OrderedDict[int, None] = OrderedDict()
        #: Requests in flight by adapter and department.
        self._in_flight: dict[int, dict[str, int]] = {}
        self._last_admission: dict[int, int] = {}
        #: Adapters that get no new requests, so that their slot becomes free.
        self.emptying: set[int] = set()
        #: Adapters whose requests wait for another slot themselves: emptying theirs would never
        #: end.
        self.held: set[int] = set()

    @property
    def free(self) -> int:
        """Slots without anything in flight."""
        return self.count - len(self._in_flight)

    @property
    def untouched(self) -> bool:
        """Whether a new adapter would put nobody out."""
        return len(self._resident) < self.count

    def resident(self) -> Iterator[int]:
        """Adapters in slots, least recently used first."""
        return iter(self._resident)

    def is_resident(self, adapter: int) -> bool:
        """Whether the adapter has a slot, as far as we know."""
        return adapter in self._resident

    def is_in_flight(self, adapter: int) -> bool:
        """Whether requests for the adapter are in the engine."""
        return adapter in self._in_flight

    def users(self, adapter: int) -> Iterable[str]:
        """Departments with requests for the adapter in the engine."""
        return self._in_flight[adapter]

    def could_empty(self) -> list[int]:
        """Adapters in flight that are not being emptied; the one that will end first comes first.

        Which one that is nobody knows; the one that has had no new request for longest it is
        likely to be.
        """
        left = [a for a in self._in_flight if a not in self.emptying and a not in self.held]
        return sorted(left, key=self._last_admission.__getitem__)

    def enter(self, adapter: int, department: str, admission: int) -> bool:
        """One more request in flight; True if it is the department's first for this adapter."""
        users = self._in_flight.setdefault(adapter, {})
        first = department not in users
        users[department] = users.get(department, 0) + 1
        self._last_admission[adapter] = admission
        if adapter not in self._resident and not self.untouched:
            self._put_out_one()
        self._resident[adapter] = None
        self._resident.move_to_end(adapter)
        return first

    def leave(self, adapter: int, department: str) -> bool:
        """One request less in flight; True if it was the department's last for this adapter."""
        users = self._in_flight[adapter]
        users[department] -= 1
        if users[department]:
            return False
        del users[department]
        if not users:
            del self._in_flight[adapter], self._last_admission[adapter]
            self.emptying.discard(adapter)
        return True

    def gone(self, adapter: int) -> None:
        """The engine has no longer anything of an adapter that is not in flight."""
        if adapter not in self._in_flight:
            self._resident.pop(adapter, None)

    def correct(self, found: Iterable[int]) -> None:
        """Takes over what the engine says is in its slots, least recently used first."""
        found = [adapter for adapter in found if adapter not in self._in_flight]
        kept = [adapter for adapter in self._resident if adapter in self._in_flight]
        room = max(0, self.count - len(kept))
        self._resident = OrderedDict.fromkeys([*found[len(found) - room :], *kept])

    def _put_out_one(self) -> None:
        for adapter in self._resident:
            if adapter not in self._in_flight:
                del self._resident[adapter]
                self.switches += 1
                return
