"""The words markers say."""

import re

import pytest

from tools.demo.errors import DemoError
from tools.demo.words import choose_words, listed_words


def one_token(text: str) -> list[int]:
    return [len(text)]


def test_the_list_has_enough_plain_distinct_words() -> None:
    words = listed_words()
    assert len(words) >= 500
    assert len(set(words)) == len(words)
    assert all(re.fullmatch("[a-z]{4,12}", word) for word in words)


def test_the_choice_is_the_same_each_time_and_grows_at_its_end() -> None:
    assert choose_words(8, one_token) == choose_words(500, one_token)[:8]


def test_no_chosen_word_lies_in_another() -> None:
    words = choose_words(500, one_token)
    text = " ".join(words)
    assert [word for word in words if text.count(word) != 1] == []


def test_words_of_several_tokens_and_overlapping_words_are_passed_over() -> None:
    def encode(text: str) -> list[int]:
        return [1, 2] if text == " waterfall" else [1]

    words = ["waterfall", "tiger", "tigers", "ice", "mice", "moon"]
    assert choose_words(3, encode, words) == ["tiger", "ice", "moon"]


def test_too_many_names_the_option_the_file_and_the_cure() -> None:
    with pytest.raises(DemoError, match=r"--markers 3: .*words\.txt has 1 usable words; ask for"):
        choose_words(3, one_token, ["moon"])
