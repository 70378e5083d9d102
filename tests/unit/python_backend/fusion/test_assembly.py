"""Mixtures beside a real keeper: they go with their parts, and nothing stays on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from python_backend.adapters.store import Store
from python_backend.admin import desk as desk_module
from python_backend.fusion.assembly import assembled
from python_backend.fusion.live import Fusions
from python_backend.fusion_settings import FusionSettings
from python_backend.lora_metrics import FUSION_SECONDS
from python_backend.metrics import Update
from python_backend.ticket import Part
from python_backend.tier_settings import TierSettings
from tests.badadapters import target
from tests.unit.python_backend.admin.desk_house import House, run
from tests.unit.python_backend.service_house import until

ONE, TWO = "fin_risk_v1", "fin_tone_v1"


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nobody reads the snapshot."""
    monkeypatch.setattr(desk_module, "ACKNOWLEDGE_S", 0.0)


class Kitchen:
    """Two adapters that are offered, and their mixtures."""

    def __init__(self, house: House, fusions: Fusions, put: list[Update]) -> None:
        self.house, self.fusions, self.put = house, fusions, put

    def parts(self) -> tuple[Part, ...]:
        offered = self.house.keeper.offered()
        return (Part(ONE, offered[ONE], 0.6), Part(TWO, offered[TWO], 0.4))

    async def mix(self) -> Path:
        async with self.fusions.lease(self.parts(), "fin") as version:
            return version.path


@contextmanager
def kitchen(house: House) -> Iterator[Kitchen]:
    put: list[Update] = []
    store = Store(house.engine, TierSettings(), max_count=10)
    fusions = assembled(
        FusionSettings(), house.keeper, store, target(), house.settings.staged_dir, put.extend
    )
    yield Kitchen(house, fusions, put)


async def adapters(house: House) -> None:
    for name, kind in ((ONE, "one"), (TWO, "two")):
        await house.ended(
            "add", lora_id=name, source=str(house.write(house.tmp / "incoming" / name, kind))
        )


@pytest.mark.parametrize("op", ["disable", "remove"])
def test_it_goes_with_its_part(tmp_path: Path, op: str) -> None:
    async def test(house: House) -> None:
        await adapters(house)
        with kitchen(house) as cook:
            path = await cook.mix()
            assert path.parent == house.settings.staged_dir.absolute() and path.is_dir()
            assert [update.name for update in cook.put] == [FUSION_SECONDS]
            cook.fusions.sweep()
            assert len(cook.fusions.live) == 1
            if op == "remove":
                await house.ended(op, lora_id=TWO)
            else:
                await house.ask(op, lora_id=TWO)
            assert TWO not in house.keeper.offered()
            cook.fusions.sweep()
            assert cook.fusions.live == []
            await until(lambda: not path.exists(), 20)
            assert house.keeper.versions.usage.of(f"{ONE}*0.6+{TWO}*0.4") == (0, None)

    run(tmp_path, test)


def test_the_next_start_leaves_no_mixture_behind(tmp_path: Path) -> None:
    left: list[Path] = []

    async def first(house: House) -> None:
        await adapters(house)
        with kitchen(house) as cook:
            left.append(await cook.mix())

    async def second(house: House) -> None:
        await until(lambda: not left[0].exists(), 20)
        staged = house.settings.staged_dir
        offered = house.keeper.offered
        await until(lambda: {path.name for path in staged.iterdir()} == set(offered().values()), 20)

    run(tmp_path, first)
    assert left[0].exists()
    run(tmp_path, second)
