"""Triton's socket for the streaming door; what it does is in ``python_backend.doors``."""

import locale
from typing import Any

# The stub starts in the C locale, in which reading UTF-8 files fails.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

from python_backend import settings  # noqa: E402
from python_backend.doors import Door  # noqa: E402
from python_backend.presence import Watch, announce  # noqa: E402
from python_backend.wire import bls, logs  # noqa: E402


class TritonPythonModel:
    """One door."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads the settings."""
        logs.log_to_triton()
        config = settings.from_environment()
        watch = Watch(config.run_dir, (bls.GATE, bls.ENGINE))
        self._door = Door(bls.TritonBackend(can_stream=True), config.doors, watch.lost)
        self._presence = announce(config.run_dir, args["model_name"])

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
