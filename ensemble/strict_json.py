"""Strict JSON from a caller: what is wrong with it is an error that names the field."""

from __future__ import annotations

from typing import Any

from python_backend import strict_json
from python_backend.errors import InvalidArgument


def parse_json(field: str, data: bytes | str, *, max_bytes: int) -> Any:
    """The value in ``data``.

    Raises:
        InvalidArgument: more than ``max_bytes`` bytes, or not strict JSON (``strict_json.loads``).
    """
    if len(data) > max_bytes:
        raise InvalidArgument(field, f"longer than {max_bytes} bytes")
    try:
        return strict_json.loads(data)
    except strict_json.StrictJsonError as error:
        raise InvalidArgument(field, str(error)) from None
