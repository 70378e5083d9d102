"""A store on the fake engine, with a clock that is turned by hand."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from python_backend.adapters.house import House
from python_backend.adapters.shm_tier import ShmTier
from python_backend.adapters.store import Store
from python_backend.adapters.tending import Tending
from python_backend.engine.base import Job, Version
from python_backend.engine.fake import FakeEngine
from python_backend.errors import NotFound
from python_backend.messages import EngineRequest
from python_backend.tier_settings import TierSettings

SIZE = 100
#: Of a copy in memory each of the two files takes a page.
COPY = 2 * os.sysconf("SC_PAGESIZE")
_ids = itertools.count(1)


class World:
    """A store on the fake engine, adapters of 100 bytes, and a clock that is turned by hand."""

    def __init__(
        self,
        folder: Path,
        *,
        host: int = 10 * SIZE,
        shm: int = 0,
        warm: object = 0,
        count: int = 100,
    ) -> None:
        self.folder, self.now = folder, 0.0
        self.leased: set[int] = set()
        self.pinned: set[str] = set()
        self.ready: dict[str, Version] = {}
        self.gone: set[str] = set()
        self.engine = FakeEngine()
        settings = TierSettings.model_validate(
            {"host_bytes": host, "shm_bytes": shm, "warm": warm, "half_life_s": 100}
        )
        self.shm: ShmTier | None = None
        if shm:
            (folder / "shm").mkdir()
            self.shm = ShmTier(folder / "shm")
            self.shm.open()
        self.store = Store(
            self.engine, settings, max_count=count, shm=self.shm, clock=lambda: self.now
        )
        self.store.house = House(
            self.leased.__contains__, lambda: self.pinned, lambda: dict(self.ready)
        )
        self.tending = Tending(self.store, self.lease)

    @contextlib.contextmanager
    def lease(self, version: Version) -> Iterator[None]:
        if version.lora_id in self.gone:
            raise NotFound
        yield

    def adapter(self, name: str, size: int = SIZE) -> Version:
        path = self.folder / name
        path.mkdir()
        (path / "adapter_config.json").write_bytes(b"{}")
        (path / "adapter_model.safetensors").write_bytes(b"w" * size)
        version = Version(name, name, next(_ids), path)
        self.ready[name] = version
        return version

    async def ask(self, version: Version) -> str:
        self.now += 1
        request = EngineRequest({"max_tokens": 2})
        job = Job(f"uid{self.now}", (1,), request, version, "")
        steps = [step async for step in self.store.generate(job)]
        return steps[-1].sequences[0].text

    async def names(self) -> list[str]:
        """Who is in the engine, by its own word; the store must know the same."""
        resident = await self.engine.resident()
        assert set(resident) == set(self.store.hosted)
        return sorted(v.lora_id for v in self.ready.values() if v.int_id in resident)
