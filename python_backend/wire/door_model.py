"""The Triton model of a BLS door: one class for the callers' doors and for the operators'."""

from __future__ import annotations

from typing import Any, ClassVar

from python_backend.doors import Door
from python_backend.engine_group import EngineGroup
from python_backend.presence import Watch, announce
from python_backend.wire import bls, logs


class DoorModel:
    """One door; a model's socket says whether it can send more than one response,
    and whether it has ``FUSION_OUTPUTS``.

    The operators' door has another backend, and an ``initialize`` of its own.
    """

    can_stream: ClassVar[bool] = False
    #: Whether it says what was mixed.
    says_fusion: ClassVar[bool] = False

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the settings."""
        logs.log_to_triton()
        group = EngineGroup.from_triton(args)
        watch = Watch(group.server_run_dir, (group.gate, group.engine))
        backend = bls.TritonBackend(
            can_stream=self.can_stream,
            says_fusion=self.says_fusion,
            gate=group.gate,
            engine=group.engine,
        )
        self._door = Door(backend, group.settings.doors, watch.lost)
        self._presence = announce(group.server_run_dir, args["model_name"])

    def execute(self, requests: list[Any]) -> None:
        """Starts each call on a thread of its own and returns at once."""
        for request in requests:
            self._door.submit(request, bls.TritonCaller(request))

    def is_ready(self) -> bool:
        """Whether the models behind the door live. Newer Triton asks; 24.10 does not."""
        return self._door.ready

    def finalize(self) -> None:
        """Cancels what is in flight."""
        self._presence.withdraw()
        self._door.stop()
