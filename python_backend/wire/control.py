"""What a model may ask of the server it runs in."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils

log = logging.getLogger(__name__)


def unload(model: str) -> None:
    """Asks Triton to unload a model; returns before it has. Only explicit mode allows it."""
    try:
        pb_utils.unload_model(model)
    except pb_utils.TritonModelException as error:
        log.warning("model %s cannot be unloaded: %s", model, error)
