"""Stop strings in pieces of text: the same as in the whole text, whatever the pieces are."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from python_backend.fusion.stopping import Stops

TEXT = st.text("abc", max_size=30)
STRINGS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def expected(text: str, strings: list[str], include: bool) -> tuple[str, bool]:
    """By looking at every prefix: stopped by whatever is complete first."""
    for end in range(len(text) + 1):
        found = [(text[:end].find(s), len(s)) for s in strings if s in text[:end]]
        if found:
            at, length = min(found)
            return text[: at + length if include else at], True
    return text, False


@given(TEXT, STRINGS, st.booleans(), st.lists(st.integers(0, 30), max_size=8))
def test_pieces_make_no_difference(
    text: str, strings: list[str], include: bool, cuts: list[int]
) -> None:
    stops = Stops(strings, include=include)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    out, shown = "", []
    for begin, end in itertools.pairwise(edges):
        out += stops.feed(text[begin:end])
        shown.append(out)
    out += stops.rest()
    assert (out, stops.stopped) == expected(text, strings, include)
    # Nothing that was shown is ever taken back.
    assert all(out.startswith(part) for part in shown)


def test_no_more_is_held_back_than_needed() -> None:
    stops = Stops(["END"])
    assert [stops.feed(piece) for piece in ("abc", "E", "N", "x", "E")] == [
        "abc",
        "",
        "",
        "ENx",
        "",
    ]
    assert stops.rest() == "E"


def test_after_the_stop_nothing_comes() -> None:
    stops = Stops(["b"])
    assert stops.feed("abc") == "a"
    assert stops.feed("more") == ""
    assert stops.rest() == ""
