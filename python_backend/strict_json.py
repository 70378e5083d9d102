"""JSON from outside, read strictly: what two readers could understand differently is refused."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

#: Deepest nesting of objects and arrays: room for what vLLM allows in a structural tag, 80.
MAX_DEPTH = 84


class StrictJsonError(ValueError):
    """Text that is not strict JSON; the message fits into a sentence after its subject."""


def safe_name(name: object) -> str:
    """A foreign name, fit for a message or a log: at most 64 characters, all else escaped."""
    return ascii(str(name)[:64])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise StrictJsonError(f"the key {safe_name(key)} is given twice")
        found[key] = value
    return found


def _no_constant(_: str) -> NoReturn:
    raise StrictJsonError("NaN and infinite numbers are not allowed")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _no_constant(digits)
    return value


def loads(data: bytes | str) -> Any:
    """The value in ``data``: UTF-8 without a byte order mark.

    Raises:
        StrictJsonError: not UTF-8, not JSON, NaN or an infinity, a key given twice, nested deeper
            than ``MAX_DEPTH``, or text with lone surrogates.
    """
    try:
        text = (data if isinstance(data, bytes) else data.encode("utf-8")).decode("utf-8")
    except UnicodeError:
        raise StrictJsonError("not UTF-8") from None
    too_deep = StrictJsonError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(
            text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise StrictJsonError(f"not valid JSON at character {error.pos}") from None
    except RecursionError:
        raise too_deep from None
    except StrictJsonError:
        raise
    except ValueError:  # a number of thousands of digits
        raise StrictJsonError("not valid JSON: a number is too long") from None
    if deeper_than(value, MAX_DEPTH):
        raise too_deep
    # Only an escape can bring in a lone surrogate: the text itself was UTF-8.
    if "\\ud" in text.lower() and not is_text(json.dumps(value, ensure_ascii=False)):
        raise StrictJsonError("holds a lone surrogate, which is not text")
    return value


def loads_object(data: bytes | str) -> dict[str, Any]:
    """The JSON object in ``data``.

    Raises:
        StrictJsonError: as ``loads``, or it is not an object.
    """
    value = loads(data)
    if not isinstance(value, dict):
        raise StrictJsonError("not a JSON object")
    return value


def deeper_than(value: Any, levels: int) -> bool:
    """Whether objects and arrays nest deeper than ``levels``; depth costs no stack."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: dict[str, Any] | list[Any]) -> list[Any]:
    values = node.values() if isinstance(node, dict) else node
    return [value for value in values if isinstance(value, dict | list)]


def is_text(value: str) -> bool:
    """Whether ``value`` can be written as UTF-8 (no lone surrogates)."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
