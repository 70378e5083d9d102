"""A desk over a real keeper, a real adapter root and the fake engine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from python_backend import runtime
from python_backend.adapters.catalog import SNAPSHOT_FILE
from python_backend.adapters.keeper import Keeper
from python_backend.admin import commands
from python_backend.admin.desk import Desk
from python_backend.admin.engine_view import EngineView
from python_backend.engine.fake import FakeEngine
from python_backend.guard import Guard
from python_backend.settings import Settings
from python_backend.ticket import ENGINE_AUDIENCE, Ticket
from tests.badadapters import good, target

BOOT = "b" * 32
#: Two contents that differ.
KINDS: dict[str, dict[str, Any]] = {"one": {}, "two": {"dtype": "BF16"}}


def ticket(department: str = "ops") -> Ticket:
    return Ticket(
        BOOT, ENGINE_AUDIENCE, "admin", "0" * 32, department, "operator", (), "", "", 0, 0
    )


class House:
    """What a test needs of a server without Triton."""

    def __init__(self, tmp: Path, settings: Settings, engine: FakeEngine) -> None:
        self.tmp, self.settings, self.engine = tmp, settings, engine
        self.held_back = False
        #: As from a ``multi_lora.json``: folder by lora_id.
        self.elsewhere: dict[str, Path] = {}
        self.cancelled: list[tuple[str, str | None]] = []
        self.guard = Guard(settings.breakers, engine.preload, lambda: 0.0)
        self.keeper: Keeper
        self.desk: Desk

    @property
    def root(self) -> Path:
        return self.settings.adapters.root

    def write(self, folder: Path, kind: str = "one") -> Path:
        good(**KINDS[kind]).write(folder)
        return folder

    async def open(self) -> None:
        info = dataclasses.replace(await self.engine.start(), target=target())
        loop = asyncio.get_running_loop()
        self.keeper = Keeper(
            self.settings, self.engine, info, loop, boot_id=BOOT, listed=self.elsewhere
        )
        await asyncio.to_thread(self.keeper.open)
        self.desk = Desk(
            self.keeper,
            self.engine,
            info,
            self.settings.adapters,
            boot_id=BOOT,
            view=EngineView(self.engine_state),
            heals=lambda: 0,
            held_back=lambda: self.held_back,
            cancel=self.cancel,
            guard=self.guard,
        )

    async def engine_state(self) -> Mapping[str, Any]:
        resident = await self.engine.resident()
        return {"slots": [*resident[:1], None], "host": list(resident), "failed": {}}

    def cancel(self, uid: str, department: str | None) -> bool:
        self.cancelled.append((uid, department))
        return department is None

    async def close(self) -> None:
        await self.desk.stop()
        await asyncio.to_thread(self.keeper.close)

    async def ask(self, op: str, *, by_admin: bool = True, **fields: Any) -> dict[str, Any]:
        command = commands.parse(json.dumps({"op": op, **fields}).encode())
        command = dataclasses.replace(command, by_admin=by_admin)
        result: dict[str, Any] = json.loads(await self.desk.answer(command, ticket()))
        return result

    async def ended(self, op: str, **fields: Any) -> dict[str, Any]:
        """The job that ``op`` starts, once it has ended."""
        job = (await self.ask(op, **fields))["job"]
        async with asyncio.timeout(20):
            while (found := await self.ask("job", job=job))["state"] == "running":
                await asyncio.sleep(0.01)
        return found

    async def listed(self) -> dict[str, dict[str, Any]]:
        return {row["lora_id"]: row for row in (await self.ask("list"))["adapters"]}

    def snapshot(self) -> dict[str, Any]:
        """What gates see."""
        found: dict[str, Any] = json.loads((self.settings.run_dir / SNAPSHOT_FILE).read_text())
        return found


Test = Callable[[House], Awaitable[None]]


def run(
    tmp: Path,
    test: Test,
    *,
    max_loras: int = 2,
    elsewhere: Mapping[str, Path] | None = None,
    **settings: Any,
) -> None:
    """Runs ``test``; the house is closed behind it."""

    async def main() -> None:
        (tmp / "adapters").mkdir(exist_ok=True)
        (tmp / "incoming").mkdir(exist_ok=True)
        body = {
            "adapters": {
                "root": tmp / "adapters",
                "add_from": [tmp / "incoming"],
                "settle_s": 0.2,
            },
            "policy": tmp / "policy.yaml",
            "state_dir": tmp / "state",
            **settings,
        }
        house = House(tmp, Settings.model_validate(body), FakeEngine(max_loras=max_loras))
        house.elsewhere = dict(elsewhere or {})
        runtime.ticket_key(house.settings.run_dir)
        await house.open()
        try:
            async with asyncio.timeout(60):
                await test(house)
        finally:
            await house.close()

    asyncio.run(main())
