"""Triton's socket for the gate; what it decides is in ``ensemble.gate``."""

import locale
import time
from typing import Any

# The stub starts in the C locale, in which reading UTF-8 files fails.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

import logging  # noqa: E402

from ensemble.gate_server import GateServer  # noqa: E402
from python_backend import runtime  # noqa: E402
from python_backend.engine_group import EngineGroup  # noqa: E402
from python_backend.errors import Internal, ServingError  # noqa: E402
from python_backend.metrics import Metrics  # noqa: E402
from python_backend.presence import announce  # noqa: E402
from python_backend.wire import logs, metrics, reading, writing  # noqa: E402

log = logging.getLogger("ensemble")


class TritonPythonModel:
    """One gate."""

    def initialize(self, args: dict[str, str]) -> None:
        """Reads settings, policy and key; a wrong one stops the start with its name."""
        logs.log_to_triton()
        group = EngineGroup.from_triton(args)
        name = args["model_name"]
        shown = Metrics(metrics.TritonMetrics(), {"model": name, "version": args["model_version"]})
        self._server = GateServer(group.settings, runtime.boot_id(), name, shown)
        self._presence = announce(group.server_run_dir, name)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One decision, or one error, per request."""
        return [self._decide(request) for request in requests]

    def _decide(self, request: Any) -> Any:
        try:
            decision = self._server.decide(
                lambda: reading.read_raw(request, can_stream=True),
                cancellable=reading.wants(request, "cancel_ticket"),
            )
            return writing.decision_response(decision)
        except ServingError as error:
            return writing.error_response(error)
        except Exception:
            internal = Internal()
            log.exception("error id %s", internal.error_id)
            return writing.error_response(internal)

    def is_ready(self) -> bool:
        """Whether there is an engine to decide for. Newer Triton asks; 24.10 does not."""
        return self._server.snapshots.available(time.monotonic())

    def finalize(self) -> None:
        """Ends the audit in order; nobody will miss this process."""
        self._server.close()
        self._presence.withdraw()
