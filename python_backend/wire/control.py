"""What a model may ask of the server it runs in."""

from __future__ import annotations

import logging
import threading

import triton_python_backend_utils as pb_utils

log = logging.getLogger(__name__)


def unload(model: str) -> None:
    """Asks Triton to unload a model; returns at once. Only explicit mode allows it."""
    # On a thread of its own: when it is the caller's own model that is unloaded, Triton's answer
    # can come after the end of the model, which would wait for whoever waits for the answer.
    threading.Thread(target=_unload, args=(model,), name="unload", daemon=True).start()


def _unload(model: str) -> None:
    try:
        pb_utils.unload_model(model)
    except pb_utils.TritonModelException as error:
        log.warning("model %s cannot be unloaded: %s", model, error)
