"""A worker extension with a hook that does what must never happen."""

from __future__ import annotations

from python_backend.engine.observe import ObservedWorkerExtension
from python_backend.engine.private import Internals


class MislabellingExtension(ObservedWorkerExtension):
    """The real one, and ``lora_mislabel``."""

    def lora_mislabel(self, int_id: int, other: int) -> None:
        """Writes the weights in the slot of ``other`` over those in the slot of ``int_id``."""
        manager = Internals.of(self).model_manager
        to, source = (manager.lora_index_to_id.index(one) for one in (int_id, other))
        for module in manager.modules.values():
            for stacked in (module.lora_a_stacked, module.lora_b_stacked):
                for tensor in stacked if isinstance(stacked, tuple | list) else (stacked,):
                    tensor[to].copy_(tensor[source])
