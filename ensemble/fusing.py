"""The input ``fusion``: how adapters are to be mixed.

    {"mode": "weights", "weights": {"fin_risk_v2": 0.6, "svc_chat_v1": 0.3}}

``mode`` is ``weights`` if it is not given. Weights may stand in the ``lora_id`` instead, as an
expression. ``candidates`` (mode ``auto``) are the names among which weights are computed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ensemble.strict_json import parse_json
from python_backend.errors import InvalidArgument
from python_backend.fusion import expression
from python_backend.fusion.distribution import DISTRIBUTION
from python_backend.fusion.expression import Terms
from python_backend.fusion_settings import FusionSettings
from python_backend.strict_json import safe_name

FIELD = "fusion"
WEIGHTS, AUTO = "weights", "auto"
MODES = (WEIGHTS, AUTO, DISTRIBUTION)

MAX_JSON_BYTES = 64 << 10
_KEYS = frozenset({"mode", "weights", "candidates"})


@dataclasses.dataclass(frozen=True)
class Wish:
    """What a caller wants mixed; names as they were sent.

    ``mode`` is empty where nothing was said about it, ``terms`` None where no weights were given.
    """

    mode: str = ""
    terms: Terms | None = None
    candidates: tuple[str, ...] = ()


def read(raw: bytes | None, settings: FusionSettings) -> Wish:
    """The wish in the input ``fusion``; None is not sent.

    Raises:
        InvalidArgument: names what is wrong with it.
    """
    if raw is None:
        return Wish()
    body = parse_json(FIELD, raw, max_bytes=MAX_JSON_BYTES)
    if not isinstance(body, dict):
        raise InvalidArgument(FIELD, "must be a JSON object")
    for key in body:
        if key not in _KEYS:
            raise InvalidArgument(FIELD, f"the key {safe_name(key)} is not known")
    mode = body.get("mode", WEIGHTS)
    if not isinstance(mode, str) or mode not in MODES:
        raise InvalidArgument("fusion.mode", f"must be one of {', '.join(MODES)}")
    weights = body.get("weights")
    terms = None if weights is None else expression.of_object(weights, settings)
    if mode == AUTO and terms is not None:
        raise InvalidArgument("fusion.weights", "mode auto computes them; leave them out")
    return Wish(mode, terms, _candidates(body.get("candidates"), mode, settings))


def _candidates(names: Any, mode: str, settings: FusionSettings) -> tuple[str, ...]:
    if names is None:
        return ()
    field = "fusion.candidates"
    if mode != AUTO:
        raise InvalidArgument(field, "only mode auto has them")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(field, "must be a list of adapters' names")
    if not names or len(names) > settings.max_parts:
        raise InvalidArgument(field, f"must be 1 to {settings.max_parts} names")
    return tuple(names)
