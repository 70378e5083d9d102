"""What a mixture is made of, and its name: the same recipe is the same adapter."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from python_backend.adapters.naming import BASE, engine_name
from python_backend.fusion import expression
from python_backend.ticket import Part


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The parts of a mixture in canonical order, none with a weight of 0."""

    parts: tuple[Part, ...]

    @property
    def expression(self) -> str:
        """Public names and weights: the mixture's ``lora_id``."""
        return expression.text((part.lora_id, part.weight) for part in self.parts)

    @property
    def digest(self) -> str:
        """sha256 hex over each part's content and weight: what is mixed from them is given by it.

        Every field is of fixed length or preceded by its length, so no two recipes read alike.
        """
        recipe = hashlib.sha256(b"lora-fusion-1\0")
        for part in self.parts:
            weight = expression.number(part.weight).encode("ascii")
            recipe.update(bytes.fromhex(part.digest))
            recipe.update(len(weight).to_bytes(4, "big") + weight)
        return recipe.hexdigest()


def is_plain(parts: tuple[Part, ...]) -> bool:
    """Whether this is base, or one adapter as it is: nothing has to be mixed."""
    return not parts or (len(parts) == 1 and parts[0].weight == 1.0)


def served(parts: tuple[Part, ...]) -> str:
    """What ran, by name, where parts are not made into one adapter."""
    found = Recipe(parts)
    return engine_name(found.expression, found.digest) if parts else BASE


def account(parts: tuple[Part, ...], mode: str) -> str:
    """What ran, as JSON: ``mode``, ``expression``, ``weights`` by lora_id, ``base``'s share."""
    terms = [(part.lora_id, part.weight) for part in parts]
    body = {
        "mode": mode,
        "expression": expression.text(terms),
        "weights": dict(terms),
        "base": expression.base_share(terms),
    }
    return json.dumps(body, separators=(",", ":"))
