"""Mixtures come when asked for, are shared, and leave with their parts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from python_backend.adapters import staging
from python_backend.adapters.staging_guard import StagingGuard
from python_backend.adapters.versions import Versions
from python_backend.engine.base import Version
from python_backend.engine.fake import FakeEngine
from python_backend.errors import AdapterFailed, InvalidArgument, NotFound, Overloaded
from python_backend.fusion import live
from python_backend.fusion.building import Builder, Plan
from python_backend.fusion.live import Fusions, House
from python_backend.ticket import Part
from tests.badadapters import Shapes, good, target
from tests.unit.python_backend.service_house import until

SHAPES = Shapes(layers=1, hidden=16, kv=8, intermediate=24, vocab=32)
TARGET = target(SHAPES, max_rank=8)


class Held(Builder):
    """A builder that waits for a test before it writes."""

    def __init__(self, root: Path) -> None:
        super().__init__(TARGET, root)
        self.go = threading.Event()
        self.go.set()
        self.written = 0

    def write(self, plan: Plan, digest: str) -> Path:
        assert self.go.wait(10)
        self.written += 1
        return super().write(plan, digest)


class World:
    """Three adapters of rank 4, on offer, and mixtures of them in the fake engine."""

    def __init__(self, root: Path, max_live: int) -> None:
        self.root = root
        self.engine, self.versions, self.guard = FakeEngine(), Versions(), StagingGuard()
        self.offered: dict[str, str] = {}
        self.forgotten: list[str] = []
        self.discarded: list[str] = []
        self.built: list[float] = []
        for number, name in enumerate(("a", "b", "c")):
            self.offer(f"fin_{name}_v1", lora_alpha=number + 1)
        self.builder = Held(root / "staged")
        house = House(
            self.guard,
            self.discarded.append,
            lambda: dict(self.offered),
            self.forgotten.append,
            self.built.append,
        )
        self.fusions = Fusions(self.versions, self.engine, self.builder, house, max_live=max_live)

    def offer(self, lora_id: str, **config: Any) -> None:
        source = self.root / f"{lora_id}-{len(self.offered)}-{config}"
        good(SHAPES, layers=(0,), **config).write(source)
        staged = staging.stage(source, self.root / "staged", TARGET, 1 << 20)
        self.versions.register(lora_id, staged.digest, staged.path)
        self.offered[lora_id] = staged.digest

    def parts(self, **weights: float) -> tuple[Part, ...]:
        names = {name: f"fin_{name}_v1" for name in weights}
        return tuple(Part(names[n], self.offered[names[n]], w) for n, w in weights.items())

    async def use(self, **weights: float) -> Version:
        async with self.fusions.lease(self.parts(**weights), "fin") as version:
            return version

    async def settled(self) -> None:
        await until(lambda: not self.fusions._leaving)


Run = Callable[[Callable[[World], Coroutine[Any, Any, None]]], World]


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    def call(test: Callable[[World], Coroutine[Any, Any, None]]) -> World:
        world = World(tmp_path, getattr(request, "param", 2))

        async def main() -> None:
            await world.engine.start()
            async with asyncio.timeout(20):
                await test(world)
                await world.settled()

        asyncio.run(main())
        assert world.versions.leases == 0
        assert not world.fusions._wanted and not world.fusions._reserved
        return world

    return call


def test_it_is_made_once_and_kept(run: Run) -> None:
    async def test(world: World) -> None:
        async with world.fusions.lease(world.parts(a=0.6, b=0.3), "fin") as version:
            assert version.lora_id == "fin_a_v1*0.6+fin_b_v1*0.3"
            assert version.path == world.builder.folder(version.digest)
            assert {path.name for path in version.path.iterdir()} == {
                "adapter_config.json",
                "adapter_model.safetensors",
            }
            # Itself and both parts, for as long as it is used.
            assert world.versions.leases == 3
        again = await world.use(a=0.6, b=0.3)
        assert again is version
        assert await world.use(a=0.5, b=0.3) is not version

    world = run(test)
    assert (world.builder.written, len(world.built)) == (2, 2)


def test_many_at_once_share_one(run: Run) -> None:
    async def test(world: World) -> None:
        world.builder.go.clear()
        tasks = [asyncio.create_task(world.use(a=0.5, b=0.5)) for _ in range(20)]
        await asyncio.sleep(0.01)
        for task in tasks[:15]:
            task.cancel()  # those who leave take nothing with them
        await asyncio.sleep(0)
        world.builder.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert len({version for version in found[15:]}) == 1
        assert all(isinstance(one, asyncio.CancelledError) for one in found[:15])

    assert run(test).builder.written == 1


def test_the_least_recently_used_idle_one_makes_room(run: Run) -> None:
    async def test(world: World) -> None:
        first, second = await world.use(a=0.1), await world.use(a=0.2)
        assert await world.use(a=0.1) is first
        await world.use(a=0.3)
        await world.settled()
        assert world.fusions.live == ["fin_a_v1*0.1", "fin_a_v1*0.3"]
        assert world.discarded == [second.digest]
        assert world.forgotten == [second.lora_id]
        with pytest.raises(NotFound):
            world.versions.get(second.lora_id, second.digest)
        # Made anew it has another id: what the engine may have kept is not taken for it.
        assert (await world.use(a=0.2)).int_id > second.int_id

    assert run(test).engine.counts["unload"] == 2


def test_what_is_in_use_does_not_make_room(run: Run) -> None:
    async def test(world: World) -> None:
        async with contextlib.AsyncExitStack() as held:
            for weight, department in ((0.1, "svc"), (0.2, "qa")):
                lease = world.fusions.lease(world.parts(a=weight), department)
                await held.enter_async_context(lease)
            with pytest.raises(Overloaded, match="too many different mixtures are") as error:
                await world.use(a=0.3)
            assert error.value.retry_after == 1
            assert (await world.use(a=0.2)).lora_id == "fin_a_v1*0.2"
        assert (await world.use(a=0.3)).lora_id == "fin_a_v1*0.3"

    run(test)


@pytest.mark.parametrize("run", [4], indirect=True)
def test_nobody_has_more_than_three_quarters(run: Run) -> None:
    async def test(world: World) -> None:
        async with contextlib.AsyncExitStack() as held:
            for weight in (0.1, 0.2, 0.3):
                lease = world.fusions.lease(world.parts(a=weight), "fin")
                await held.enter_async_context(lease)
            with pytest.raises(Overloaded, match="of yours"):
                await world.use(a=0.4)
            async with world.fusions.lease(world.parts(a=0.4), "svc"):
                assert len(world.fusions.live) == 4
            # What is in use already may be shared.
            assert (await world.use(a=0.1)).lora_id == "fin_a_v1*0.1"
        await world.use(a=0.4)
        assert not world.fusions._users

    run(test)


def test_one_that_is_being_made_counts(run: Run) -> None:
    async def test(world: World) -> None:
        world.builder.go.clear()

        async def use(weight: float) -> Version:
            async with world.fusions.lease(world.parts(a=weight), f"d{weight}") as version:
                return version

        making = [asyncio.create_task(use(weight)) for weight in (0.1, 0.2, 0.3)]
        await until(lambda: world.fusions._reserved >= 1)
        world.builder.go.set()
        found = await asyncio.gather(*making, return_exceptions=True)
        assert len(world.fusions.live) <= 2
        assert sum(isinstance(one, Version) for one in found) >= 2

    run(test)


def test_a_changed_part(run: Run) -> None:
    async def test(world: World) -> None:
        old_parts = world.parts(a=0.6, b=0.3)
        async with world.fusions.lease(old_parts, "svc") as old:
            world.offer("fin_b_v1", lora_alpha=7)
            new = await world.use(a=0.6, b=0.3)
            assert new.lora_id == old.lora_id and new.digest != old.digest
            world.fusions.sweep()
            # A ticket for the old version is honoured to its end.
            assert len(world.fusions.live) == 2
        world.fusions.sweep()
        await world.settled()
        assert world.discarded == [old.digest]
        assert world.versions.get(new.lora_id, new.digest) is new

    run(test)


def test_a_part_that_is_removed_or_disabled(run: Run) -> None:
    async def test(world: World) -> None:
        parts = world.parts(a=0.6, b=0.3)
        mixed, other = await world.use(a=0.6, b=0.3), await world.use(c=0.5)
        gone = world.versions.get("fin_b_v1", world.offered.pop("fin_b_v1"))
        world.fusions.sweep()
        await world.settled()
        assert world.fusions.live == [other.lora_id]
        assert world.discarded == [mixed.digest]
        # Its version has left as well: a ticket that is late finds nothing.
        assert world.versions.forget_idle(gone)
        with pytest.raises(NotFound):
            async with world.fusions.lease(parts, "fin"):
                pass

    run(test)


def test_what_cannot_be_made(run: Run) -> None:
    async def test(world: World) -> None:
        with pytest.raises(InvalidArgument, match="add up to 12; this engine takes 8"):
            await world.use(a=0.3, b=0.3, c=0.3)
        first = await world.use(a=0.1)
        # It was refused before anything had to make room for it.
        assert world.fusions.live == [first.lora_id]
        part = world.versions.get("fin_c_v1", world.offered["fin_c_v1"])
        staging.discard(part.path)
        with pytest.raises(AdapterFailed, match="cannot be made"):
            await world.use(a=0.5, c=0.5)
        assert world.fusions.live == [first.lora_id]

    run(test)


def test_the_same_contents_under_two_names_share_a_folder(run: Run) -> None:
    async def test(world: World) -> None:
        world.offer("fin_d_v1", lora_alpha=1)
        one, two = await world.use(a=0.5), await world.use(d=0.5)
        assert (one.path, one.digest) == (two.path, two.digest)
        assert one.int_id != two.int_id and one.lora_id != two.lora_id

    assert run(test).builder.written == 1


def test_it_is_looked_for_again_and_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.001)

    async def test(world: World) -> None:
        await world.use(a=0.5)
        del world.offered["fin_a_v1"]
        follower = asyncio.create_task(world.fusions.follow())
        await until(lambda: not world.fusions.live)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)

    run(test)
