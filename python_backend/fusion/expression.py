"""The one grammar of mixtures: ``fin_risk_v2*0.6+svc_chat_v1*0.3``.

    expression = term *( "+" term )
    term       = name "*" weight          name: a lora_id or an alias
    weight     = ["-"] digits ["." digits]

ASCII, no spaces, no exponents, at most six decimals: a weight that is printed and read again is the
same number. In canonical form every adapter stands once, sorted by name, with its weights added up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from python_backend.adapters import naming
from python_backend.errors import InvalidArgument
from python_backend.fusion_settings import FusionSettings

#: One adapter's name and weight.
Term = tuple[str, float]
Terms = tuple[Term, ...]

#: Decimals of a weight.
DECIMALS = 6
#: Longest expression that is looked at.
MAX_CHARS = 4096

_WEIGHT = re.compile(r"-?(?:0|[1-9][0-9]{0,3})(?:\.[0-9]{1,6})?", re.ASCII)


def is_expression(text: str) -> bool:
    """Whether ``text`` is meant as a mixture; no adapter and no alias has such a name."""
    return "*" in text or "+" in text


def parse(text: str, settings: FusionSettings, *, field: str = "lora_id") -> Terms:
    """The terms as they stand there; their names are not looked at.

    Raises:
        InvalidArgument: not an expression, too long, or with too many terms.
    """
    if len(text) > MAX_CHARS:
        raise InvalidArgument(field, f"longer than {MAX_CHARS} characters")
    if not text.isascii() or any(not mark.isprintable() or mark == " " for mark in text):
        raise InvalidArgument(field, "a mixture is written in ASCII and without spaces")
    written = text.split("+")
    _check_count(len(written), settings, field)
    return tuple(_term(number, term, field) for number, term in enumerate(written, start=1))


def _term(number: int, text: str, field: str) -> Term:
    name, *weights = text.split("*")
    if len(weights) != 1 or not name:
        raise InvalidArgument(
            field, f"term {number} of the mixture is not name*weight, such as fin_risk_v2*0.6"
        )
    if not _WEIGHT.fullmatch(weights[0]):
        raise InvalidArgument(
            field,
            f"the weight of term {number} is not a decimal number such as 0.6 or -1, with at most "
            f"{DECIMALS} decimals",
        )
    return name, float(weights[0])


def of_object(weights: Any, settings: FusionSettings, *, field: str = "fusion.weights") -> Terms:
    """The terms that a JSON object of names and numbers stands for.

    Raises:
        InvalidArgument: it is none, or has too many entries.
    """
    if not isinstance(weights, dict) or not weights:
        raise InvalidArgument(field, "must be an object of adapters' names and their weights")
    _check_count(len(weights), settings, field)
    found = []
    for number, (name, weight) in enumerate(weights.items(), start=1):
        if is_expression(name):
            raise InvalidArgument(field, "a mixture cannot be a part of another")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise InvalidArgument(field, f"weight {number} is not a number")
        # An int of a thousand digits is no float.
        if not abs(weight) <= settings.max_weight:
            raise InvalidArgument(field, _too_large(settings))
        found.append((name, float(weight)))
    return tuple(found)


def _check_count(count: int, settings: FusionSettings, field: str) -> None:
    if count > settings.max_parts:
        raise InvalidArgument(
            field, f"a mixture of {count} adapters; this server takes at most {settings.max_parts}"
        )


def _too_large(settings: FusionSettings) -> str:
    return f"a weight is beyond {settings.max_weight:g}, the largest of this server"


def resolved(
    terms: Iterable[Term],
    resolve: Callable[[str], str],
    settings: FusionSettings,
    *,
    field: str = "lora_id",
) -> Terms:
    """The canonical form: names resolved, sorted, each once. Weights of 0 stay.

    Args:
        resolve: the lora_id (or ``base``) that a name stands for; raises ``InvalidArgument``.

    Raises:
        InvalidArgument: a name is malformed or ``base``, or a weight or the sum of all is out of
            range.
    """
    sums: dict[str, float] = {}
    for name, weight in terms:
        lora_id = resolve(name)
        if lora_id == naming.BASE:
            raise InvalidArgument(
                field, "base has no weight of its own: its share is what is missing to 1"
            )
        if not math.isfinite(weight) or abs(weight) > settings.max_weight:
            raise InvalidArgument(field, _too_large(settings))
        sums[lora_id] = round(sums.get(lora_id, 0.0) + weight, DECIMALS)
    if any(abs(weight) > settings.max_weight for weight in sums.values()):
        raise InvalidArgument(field, _too_large(settings))
    total = round(math.fsum(sums.values()), DECIMALS)
    if not settings.min_sum <= total <= settings.max_sum:
        raise InvalidArgument(
            field,
            f"the weights add up to {number(total)}; this server takes sums from "
            f"{settings.min_sum:g} to {settings.max_sum:g}",
        )
    # Adding 0.0 turns a -0.0 into 0.0: two spellings of one number would be two mixtures.
    return tuple((name, weight + 0.0) for name, weight in sorted(sums.items()))


def base_share(terms: Iterable[Term]) -> float:
    """What is left for the base model: 1 minus all weights, to six decimals; 0 of a plain one."""
    return round(1.0 - math.fsum(weight for _, weight in terms), DECIMALS) + 0.0


def number(weight: float) -> str:
    """A weight as it is written: decimal, no exponent, no trailing zeros."""
    return f"{weight:.{DECIMALS}f}".rstrip("0").rstrip(".")


def text(terms: Iterable[Term]) -> str:
    """The terms as an expression."""
    return "+".join(f"{name}*{number(weight)}" for name, weight in terms)
