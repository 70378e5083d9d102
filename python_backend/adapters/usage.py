"""How often and how lately each adapter was used. Pure: time is an argument."""

from __future__ import annotations

import threading


class Usage:
    """Uses by lora_id, since the server started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[str, tuple[int, float]] = {}

    def note(self, lora_id: str, now_s: float) -> None:
        """One more request for ``lora_id``; ``now_s`` is any clock that never goes back."""
        with self._lock:
            count, _ = self._uses.get(lora_id, (0, 0.0))
            self._uses[lora_id] = (count + 1, now_s)

    def of(self, lora_id: str) -> tuple[int, float | None]:
        """(requests so far, time of the last one or None)."""
        found = self._uses.get(lora_id)
        return (0, None) if found is None else found

    def forget(self, lora_id: str) -> None:
        """Drops an adapter that is gone."""
        with self._lock:
            self._uses.pop(lora_id, None)
