"""How often adapters were used, kept over a restart.

A file that is missing, broken or somebody else's is a cold start, never an error: it only says what
is worth its memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from python_backend import files
from python_backend.adapters import naming
from python_backend.adapters.tiers import Heat

log = logging.getLogger(__name__)

#: In the state dir.
FILE = "heat.json"
#: How often it is written, at most, seconds.
EVERY_S = 30.0
#: Largest file that is read, bytes: tens of thousands of adapters.
_MAX_BYTES = 8 << 20

_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Saved(BaseModel):
    """``uses``: by lora_id f as of the last use (see ``tiers``), and its age in seconds.

    ``saved_s`` is the wall clock's Unix time: nothing else goes on while the machine is off.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    saved_s: _Finite
    uses: dict[str, tuple[_Finite, _Finite]]

    @field_validator("uses")
    @classmethod
    def _lora_ids(cls, uses: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        if not all(map(naming.is_lora_id, uses)):
            raise ValueError("not the names of adapters")
        return uses


class HeatFile:
    """Reads a heat from its file and writes it back; lives on one event loop.

    Args:
        clock: the one by which uses are noted, monotonic, seconds.
        wall: Unix time, seconds; only tells how long the server was away.
    """

    def __init__(
        self,
        path: Path,
        heat: Heat,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._heat, self._clock, self._wall = path, heat, clock, wall
        self._written, self._written_s = heat.noted, clock()

    def restore(self) -> None:
        """Takes over what the file says. Never raises for what is in it."""
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise ValueError("too large")
            saved = _Saved.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            problem = "not as it was written" if isinstance(error, ValidationError) else error
            log.warning("%s is not used, adapters start cold: %s", self._path, problem)
            return
        # A clock that was set back, or far ahead, makes them as warm as they were, or cold.
        away_s = max(0.0, self._wall() - saved.saved_s)
        ages = {name: (f, age_s + away_s) for name, (f, age_s) in saved.uses.items()}
        self._heat.restore(ages, self._clock())

    async def keep(self, known: Callable[[], Iterable[str]]) -> None:
        """Writes, if there was something to note and it is time.

        Args:
            known: the adapters there are; others are forgotten.
        """
        if self._heat.noted != self._written and self._clock() - self._written_s >= EVERY_S:
            self._heat.keep_only(known())
            await self.write()

    async def write(self) -> None:
        """Writes now; a file that cannot be written is logged."""
        self._written, self._written_s = self._heat.noted, self._clock()
        # Mixtures are made anew when they are asked for.
        uses = {n: use for n, use in self._heat.ages(self._clock()).items() if naming.is_lora_id(n)}
        saved = _Saved(saved_s=max(0.0, self._wall()), uses=uses)
        text = saved.model_dump_json() + "\n"
        try:
            await asyncio.to_thread(files.replace, self._path, text)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)
