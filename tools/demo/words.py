"""The word each marker adapter says."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tools.demo.errors import DemoError

WORDS = Path(__file__).with_name("words.txt")

Encode = Callable[[str], list[int]]
"""Text to token ids, without special tokens."""


def listed_words() -> list[str]:
    """Return the words of ``words.txt`` in order."""
    return WORDS.read_text(encoding="ascii").split()


def choose_words(count: int, encode: Encode, words: Iterable[str] | None = None) -> list[str]:
    """Return the first ``count`` usable words, always the same ones for the same tokenizer.

    A word is usable when it is one token with its leading space, so that the model says the whole
    word by saying one token, and when it neither contains nor lies in a word chosen before, so
    that ``word in text`` names one adapter only.
    """
    chosen: list[str] = []
    for word in listed_words() if words is None else words:
        if len(chosen) == count:
            break
        if len(encode(" " + word)) == 1 and not overlaps(word, chosen):
            chosen.append(word)
    if len(chosen) < count:
        raise DemoError(
            f"--markers {count}: {WORDS} has {len(chosen)} usable words; "
            f"ask for fewer markers or add words to it"
        )
    return chosen


def overlaps(word: str, others: Sequence[str]) -> bool:
    """Tell whether ``word`` contains one of ``others`` or lies in one."""
    return any(word in other or other in word for other in others)
