"""Triton's socket for the engine; what it does is in ``python_backend``."""

import locale
from pathlib import Path
from typing import Any

# The stub starts in the C locale, in which importing vLLM fails.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")

from python_backend.engine_group import EngineGroup  # noqa: E402
from python_backend.model_options import ModelOptions  # noqa: E402
from python_backend.server import EngineServer  # noqa: E402
from python_backend.wire import control, logs, metrics, reading, sending  # noqa: E402


class TritonPythonModel:
    """The engine model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts the engine; returns when requests can be answered."""
        logs.log_to_triton()
        version_dir = Path(args["model_repository"]) / args["model_version"]
        self._responses = sending.SenderThread()
        options = ModelOptions.from_triton(args)
        group = EngineGroup.from_triton(args)
        self._coalesce = group.settings.streams.coalesce
        self._server = EngineServer(
            group.settings,
            version_dir,
            options,
            metrics.TritonMetrics(),
            group.server_run_dir,
            # Behind the responses that are still queued.
            unload=lambda: self._responses.put(lambda: control.unload(options.name)),
        )
        try:
            self._server.start()
        except BaseException:
            self.finalize()
            raise

    def execute(self, requests: list[Any]) -> None:
        """Hands each request to the engine's loop and returns at once."""
        for request in requests:
            call = reading.read_call(request)
            responder = sending.StreamResponder(
                request, self._responses, for_door=call.early_accept, coalesce=self._coalesce
            )
            self._server.submit(call, responder)

    def is_ready(self) -> bool:
        """Whether the engine lives. Newer Triton asks; 24.10 does not."""
        return self._server.ready

    def finalize(self) -> None:
        """Ends the engine and its processes."""
        self._server.stop()
        self._responses.stop()
