"""The real worker extension with hooks that do what must never happen. For tests alone."""

from __future__ import annotations

import os
import time
from typing import Any

import safetensors

from python_backend.engine.observe import ObservedWorkerExtension
from python_backend.engine.private import Internals

#: Names a file with the seconds that each opening of a weight file takes longer.
SLOW_DISK = "LORA_TEST_SLOW_DISK"
NAME = f"{__name__}.HookedExtension"


class HookedExtension(ObservedWorkerExtension):
    """The real one, a slow disk, and ``lora_mislabel``."""

    def lora_install(self, *args: Any) -> dict[str, Any]:
        if path := os.environ.get(SLOW_DISK):
            _slow_down(path)
        return super().lora_install(*args)

    def lora_mislabel(self, int_id: int, other: int) -> None:
        """Writes the weights in the slot of ``other`` over those in the slot of ``int_id``."""
        manager = Internals.of(self).model_manager
        to, source = (manager.lora_index_to_id.index(one) for one in (int_id, other))
        for module in manager.modules.values():
            for stacked in (module.lora_a_stacked, module.lora_b_stacked):
                for tensor in stacked if isinstance(stacked, tuple | list) else (stacked,):
                    tensor[to].copy_(tensor[source])


def _slow_down(path: str) -> None:
    """Has vLLM wait where it opens a weight file."""
    opened = safetensors.safe_open

    def safe_open(name: Any, *args: Any, **kwargs: Any) -> Any:
        with open(path) as file:
            time.sleep(float(file.read()))
        return opened(name, *args, **kwargs)

    safetensors.safe_open = safe_open
