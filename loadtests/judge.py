"""Whether an answer is the asked adapter's. Pure."""

from __future__ import annotations

from collections.abc import Set

from loadtests.plan import Call
from loadtests.results import Route
from python_backend import errors

BASE = "base"


def route(call: Call, text: str, served: str | None, words: Set[str]) -> Route:
    """Judges by what was said and by ``lora_served``; both must be right.

    Args:
        text: the answer without its prompt, or as much of it as came.
        served: ``lora_served``, such as ``fin_risk_v1@<digest>``.
        words: what any adapter of the server says.
    """
    said = text.split()
    if call.kind not in ("good", "cancel") or (served is None and not said):
        return "unchecked"
    if served is not None and served.partition("@")[0] != (call.lora_id or BASE):
        return "wrong"
    if call.word is not None:
        return "right" if all(word == call.word for word in said) else "wrong"
    if call.lora_id is None:
        # A marker says its word and nothing else; the base model may happen to say it once.
        alone = set(said)
        return "wrong" if len(said) > 1 and len(alone) == 1 and alone <= words else "right"
    return "unchecked"


def outcome(message: str) -> str:
    """The code of an error message of ours; ``transport`` for any other."""
    code = errors.parse(message).code
    return code if f"{code}: " in message else "transport"
