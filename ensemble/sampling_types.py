"""Types of sampling parameters: each reads one value as it may come, or refuses it.

Numbers may come as text, since ``/generate`` clients send them so; ``true`` never becomes 1 and
``"false"`` never becomes true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from python_backend.errors import InvalidArgument
from python_backend.strict_json import is_text

#: Reads the value of a field, given the field's name; raises InvalidArgument.
Reader = Callable[[str, Any], Any]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Largest token id and count the engine's int32 tensors hold.
INT32_MAX = 2**31 - 1

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_MAX_NUMBER_CHARS = 40


def integer(low: int = INT64_MIN, high: int = INT64_MAX) -> Reader:
    """A whole number in [low, high]: ``64``, ``64.0`` or ``"64"``."""

    def read(field: str, value: Any) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        # From 2**53 on a float no longer says which integer was meant.
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(field, "must be an integer")
        if not low <= value <= high:
            raise InvalidArgument(field, f"must be between {low} and {high}")
        return value

    return read


def number(low: float, high: float = math.inf, *, above: bool = False) -> Reader:
    """A finite number in [low, high], or in (low, high] if ``above``."""
    bounds = f"{'above' if above else 'at least'} {low:g}" + (
        "" if math.isinf(high) else f" and at most {high:g}"
    )

    def read(field: str, value: Any) -> float:
        if isinstance(value, str) and len(value) <= _MAX_NUMBER_CHARS and _NUMBER.fullmatch(value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(field, "must be a number")
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise InvalidArgument(field, "must be a finite number")
        if not low <= value <= high or (above and value == low):
            raise InvalidArgument(field, f"must be {bounds}")
        return float(value)

    return read


def boolean(field: str, value: Any) -> bool:
    """``true`` or ``false``, or one of these as text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    raise InvalidArgument(field, "must be true or false")


def text(field: str, value: Any, *, max_chars: int, empty: bool = False) -> str:
    """Text of at most ``max_chars`` characters that can be written as UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgument(field, "must be a string")
    if not value and not empty:
        raise InvalidArgument(field, "must not be empty")
    if len(value) > max_chars:
        raise InvalidArgument(field, f"longer than {max_chars} characters")
    if not is_text(value):
        raise InvalidArgument(field, "is not text that UTF-8 can hold")
    return value


def texts(most: int, max_chars: int, *, single: bool = False, least: int = 0) -> Reader:
    """A list of ``least`` to ``most`` non-empty strings; one string alone if ``single``."""

    def read(field: str, value: Any) -> list[str]:
        values = [value] if single and isinstance(value, str) else value
        checked = _bounded(field, values, least, most, "strings")
        return [text(field, item, max_chars=max_chars) for item in checked]

    return read


def token_ids(most: int, *, least: int = 0) -> Reader:
    """A list of ``least`` to ``most`` token ids."""
    one = integer(0, INT32_MAX)

    def read(field: str, value: Any) -> list[int]:
        return [one(field, item) for item in _bounded(field, value, least, most, "integers")]

    return read


def logit_bias(most: int) -> Reader:
    """An object of token id to bias in [-100, 100]. Keys stay text, as JSON has no other."""
    key, bias = integer(0, INT32_MAX), number(-100.0, 100.0)

    def read(field: str, value: Any) -> dict[str, float]:
        if not isinstance(value, dict):
            raise InvalidArgument(field, "must be an object of token id to bias")
        if len(value) > most:
            raise InvalidArgument(field, f"more than {most} entries")
        found = {str(key(field, k)): bias(field, v) for k, v in value.items()}
        if len(found) != len(value):
            raise InvalidArgument(field, "a token id is given twice")
        return found

    return read


def _bounded(field: str, value: Any, least: int, most: int, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidArgument(
            field, f"must be a list of {what} (lists travel in the sampling_parameters JSON)"
        )
    if not least <= len(value) <= most:
        raise InvalidArgument(field, f"must have {least} to {most} elements")
    return value
