"""Triton's socket for operators; what is decided is in ``ensemble.admin``."""

import locale

# The stub starts in the C locale, in which reading UTF-8 files fails.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

from ensemble.admin import AdminServer  # noqa: E402
from python_backend import runtime  # noqa: E402
from python_backend.doors import Door  # noqa: E402
from python_backend.engine_group import EngineGroup  # noqa: E402
from python_backend.presence import Watch, announce  # noqa: E402
from python_backend.wire import logs  # noqa: E402
from python_backend.wire.admin import AdminBackend  # noqa: E402
from python_backend.wire.door_model import DoorModel  # noqa: E402


class TritonPythonModel(DoorModel):
    """The operators' door."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads settings, policy and key; a wrong one stops the start with its name."""
        logs.log_to_triton()
        group = EngineGroup.from_triton(args)
        self._server = AdminServer(group.settings, runtime.boot_id(), args["model_name"])
        watch = Watch(group.server_run_dir, (group.engine,))
        backend = AdminBackend(self._server.decide, group.engine)
        self._door = Door(backend, group.settings.doors, watch.lost)
        self._presence = announce(group.server_run_dir, args["model_name"])

    def finalize(self) -> None:
        """Ends what is in flight, then the audit in order."""
        super().finalize()
        self._server.close()
