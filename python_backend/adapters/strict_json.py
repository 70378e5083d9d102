"""JSON from a file that is not trusted: one meaning only, bounded, and never a surprise."""

from __future__ import annotations

import json
from typing import Any, NoReturn


class StrictJsonError(ValueError):
    """Text that is not strict JSON; the message fits into a sentence."""


def _no_constant(name: str) -> NoReturn:
    raise StrictJsonError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            # Two readers may each take another one of the two.
            raise StrictJsonError(f"the key {ascii(key)[:80]} appears twice")
        found[key] = value
    return found


def loads(raw: bytes) -> dict[str, Any]:
    """The JSON object in ``raw``, which must be UTF-8 without a byte order mark.

    Raises:
        StrictJsonError: it is not UTF-8 or JSON, repeats a key, holds NaN or Infinity, nests too
            deeply, or is not an object.
    """
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except UnicodeDecodeError:
        raise StrictJsonError("it is not UTF-8 text") from None
    except RecursionError:
        raise StrictJsonError("it nests too deeply") from None
    except StrictJsonError:
        raise
    except ValueError as error:
        # Also numbers beyond Python's limit of digits.
        raise StrictJsonError(f"it is not JSON ({ascii(str(error))[1:80]})") from None
    if not isinstance(value, dict):
        raise StrictJsonError("it is not a JSON object")
    return value
