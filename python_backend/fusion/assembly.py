"""The mixtures of one server: put together with what they need of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from python_backend.adapters.keeper import Keeper
from python_backend.adapters.store import Store
from python_backend.adapters.target import Target
from python_backend.fusion.building import Builder
from python_backend.fusion.live import Fusions, House
from python_backend.fusion_settings import FusionSettings
from python_backend.lora_metrics import FUSION_SECONDS
from python_backend.metrics import Update


def assembled(
    settings: FusionSettings,
    keeper: Keeper,
    store: Store,
    target: Target,
    staged_dir: Path,
    put: Callable[[Sequence[Update]], None],
) -> Fusions:
    """Mixtures of what ``keeper`` offers, in the engine behind ``store``.

    Args:
        target: what that engine takes.
        put: takes metric updates.
    """

    def forget(lora_id: str) -> None:
        store.heat.forget(lora_id)
        keeper.versions.usage.forget(lora_id)

    house = House(
        keeper.guard,
        keeper.discard,
        keeper.offered,
        forget,
        lambda seconds: put([Update(FUSION_SECONDS, (seconds,))]),
    )
    builder = Builder(target, staged_dir)
    return Fusions(keeper.versions, store, builder, house, max_live=settings.max_live)
