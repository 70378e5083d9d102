"""Python's log records in Triton's log."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils


class TritonLogHandler(logging.Handler):
    """Python's log records in Triton's log."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        logger = pb_utils.Logger
        write = {
            logging.DEBUG: logger.log_verbose,
            logging.WARNING: logger.log_warn,
            logging.ERROR: logger.log_error,
            logging.CRITICAL: logger.log_error,
        }.get(record.levelno, logger.log_info)
        write(self.format(record))


def log_to_triton() -> None:
    """Sends this project's log records to Triton's log."""
    handler = TritonLogHandler()
    for name in ("python_backend", "ensemble"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
