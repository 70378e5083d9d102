"""``structured_outputs``: the constraint on an answer's form, in canonical shape."""

from __future__ import annotations

import json
from typing import Any

from ensemble import sampling_types as types
from ensemble.strict_json import parse_json
from python_backend.errors import InvalidArgument
from python_backend.strict_json import deeper_than, safe_name

MAX_JSON_BYTES = 128 << 10
_CHOICES = types.texts(1024, 1024, least=1)


def read(field: str, value: Any) -> dict[str, Any]:
    """Exactly one constraint, from an object or, as the official backend takes it, its JSON text.

    Schemas leave as JSON text with their keys in the caller's order: the order of a schema's
    properties is the order of the answer's, and canonical JSON would sort it.

    Raises:
        InvalidArgument: not one known constraint, or one that vLLM would refuse.
    """
    if isinstance(value, str):
        value = parse_json(field, value, max_bytes=MAX_JSON_BYTES)
    if not isinstance(value, dict):
        raise InvalidArgument(field, "must be an object or its JSON text")
    for key in value:
        if key not in _KINDS:
            raise InvalidArgument(field, f"unknown key {safe_name(key)}")
    kinds = [(key, content) for key, content in value.items() if content is not None]
    if len(kinds) != 1:
        raise InvalidArgument(field, f"must have exactly one of {', '.join(_KINDS)}")
    ((kind, content),) = kinds
    return {kind: _KINDS[kind](f"{field}.{kind}", content)}


def _document(levels: int) -> types.Reader:
    """A JSON object as text, from an object or from its text."""

    def read_document(field: str, value: Any) -> str:
        if isinstance(value, str):
            value = parse_json(field, value, max_bytes=MAX_JSON_BYTES)
        if not isinstance(value, dict):
            raise InvalidArgument(field, "must be a JSON object")
        if deeper_than(value, levels):
            raise InvalidArgument(field, f"nested deeper than {levels} levels")
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    return read_document


def _regex(field: str, value: Any) -> str:
    pattern = types.text(field, value, max_chars=8192, empty=True)
    if "\0" in pattern:
        raise InvalidArgument(field, "must not hold a NUL character")
    return pattern


def _grammar(field: str, value: Any) -> str:
    grammar = types.text(field, value, max_chars=64 << 10)
    if not grammar.strip():
        raise InvalidArgument(field, "must not be empty")
    return grammar


def _any_object(field: str, value: Any) -> bool:
    if not types.boolean(field, value):
        raise InvalidArgument(field, "must be true where it is given")
    return True


#: Depths are vLLM's own bounds.
_KINDS: dict[str, types.Reader] = {
    "json": _document(64),
    "regex": _regex,
    "choice": _CHOICES,
    "grammar": _grammar,
    "json_object": _any_object,
    "structural_tag": _document(80),
}
