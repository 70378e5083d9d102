"""The committed example sets of the demo adapters, and what an answer of each must look like."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.demo.errors import DemoError

DATA = Path(__file__).with_name("data")
ADAPTERS = ("fin_risk_v1", "svc_chat_v1", "qa_testgen_v1")

FORMATS: dict[str, re.Pattern[str]] = {
    "fin_risk_v1": re.compile(r"\S[^\n]*\nRisk rating: (LOW|MEDIUM|HIGH)"),
    "svc_chat_v1": re.compile(
        r"Hello, and thank you for writing to us! \S[^\n]*\nKind regards, your service team"
    ),
    "qa_testgen_v1": re.compile(r"TC1: \S[^\n]*\nTC2: \S[^\n]*\nTC3: \S[^\n]*"),
}
"""The whole answer of an adapter matches its pattern; no other adapter's does."""

IGNORED = -100
"""The label that PyTorch's cross entropy leaves out."""


class Example(NamedTuple):
    """A prompt and the answer to learn."""

    prompt: str
    answer: str


class Sequence(NamedTuple):
    """Token ids of a whole conversation; ``labels`` are ``IGNORED`` outside the answer."""

    ids: list[int]
    labels: list[int]


def examples(lora_id: str) -> list[Example]:
    """Return the example set of an adapter."""
    file = DATA / f"{lora_id}.jsonl"
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            found.append(Example(**json.loads(line)))
        except (ValueError, TypeError) as reason:
            raise DemoError(
                f"{file}:{number}: {reason}; a line is an object with prompt and answer"
            ) from reason
    return found


def held_out(lora_id: str) -> list[str]:
    """Return prompts that training never sees."""
    found: dict[str, list[str]] = json.loads((DATA / "held_out.json").read_text(encoding="utf-8"))
    return found[lora_id]


def has_format(lora_id: str, answer: str) -> bool:
    """Tell whether ``answer`` looks as the adapter's answers must."""
    return FORMATS[lora_id].fullmatch(answer.strip()) is not None


def sequence(
    example: Example, chat: Callable[[str], str], encode: Callable[[str], list[int]]
) -> Sequence:
    """Return the tokens of an example: the templated prompt, the answer, ``<|im_end|>``.

    Only the answer and its end are to be learnt.
    """
    prompt = encode(chat(example.prompt))
    answer = encode(example.answer + "<|im_end|>")
    return Sequence(prompt + answer, [IGNORED] * len(prompt) + answer)
