"""JSON from outside, read strictly: what two readers could understand differently is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

from python_backend.errors import InvalidArgument

#: Deepest nesting of objects and arrays: room for what vLLM allows in a structural tag, 80.
MAX_DEPTH = 84


def safe_name(name: object) -> str:
    """A caller's name, fit for a message or a log: at most 64 characters, all else escaped."""
    return ascii(str(name)[:64])


def parse(field: str, data: bytes | str, *, max_bytes: int) -> Any:
    """The value in ``data``.

    Raises:
        InvalidArgument: more than ``max_bytes`` bytes, not UTF-8, not JSON, NaN or an infinity,
            a key given twice, nested deeper than ``MAX_DEPTH``, or text with lone surrogates.
    """
    if len(data) > max_bytes:
        raise InvalidArgument(field, f"longer than {max_bytes} bytes")
    try:
        text = (data if isinstance(data, bytes) else data.encode("utf-8")).decode("utf-8")
    except UnicodeError:
        raise InvalidArgument(field, "not UTF-8") from None

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise InvalidArgument(field, f"the key {safe_name(twice)} is given twice")
        return found

    def finite(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            constant(digits)
        return value

    def constant(_: str) -> NoReturn:
        raise InvalidArgument(field, "NaN and infinite numbers are not allowed")

    try:
        value = json.loads(
            text, object_pairs_hook=once, parse_float=finite, parse_constant=constant
        )
    except json.JSONDecodeError as error:
        raise InvalidArgument(field, f"not valid JSON at character {error.pos}") from None
    except RecursionError:
        raise InvalidArgument(field, f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # a number of thousands of digits
        raise InvalidArgument(field, "not valid JSON: a number is too long") from None
    if deeper_than(value, MAX_DEPTH):
        raise InvalidArgument(field, f"nested deeper than {MAX_DEPTH} levels")
    # Only an escape can bring in a lone surrogate: the text itself was UTF-8.
    if "\\ud" in text.lower() and not is_text(json.dumps(value, ensure_ascii=False)):
        raise InvalidArgument(field, "holds a lone surrogate, which is not text")
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
