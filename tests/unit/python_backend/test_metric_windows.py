"""What a window's updates come to."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from python_backend.metric_windows import (
    VALUES_AT_ONCE,
    VALUES_PER_S,
    Kind,
    Update,
    Windows,
)

KINDS: dict[str, Kind] = {"c": "counter", "g": "gauge", "h": "histogram"}
FIN, QA = (("department", "fin"),), (("department", "qa"),)


def test_counters_add_up_gauges_keep_the_last_and_series_stay_apart() -> None:
    window = [
        Update("c", (1, 2), FIN),
        Update("g", (5, 7)),
        Update("c", (4,), QA),
        Update("c", (8,), FIN),
        Update("g", (6,)),
        Update("unknown", (1,)),
        Update("h", (0.1, 0.2)),
    ]
    assert Windows().merged(window, KINDS, 0) == [
        Update("c", (11,), FIN),
        Update("g", [6]),
        Update("c", (4,), QA),
        Update("h", [0.1, 0.2]),
    ]


def test_nothing_is_made_of_nothing() -> None:
    assert Windows().merged([], KINDS, 0) == []
    assert Windows().merged([Update("c", ())], KINDS, 0) == [Update("c", ())]


def test_a_busy_histogram_is_thinned_evenly_and_is_whole_again_after_a_pause() -> None:
    windows, busy = Windows(), [Update("h", range(1000))]
    (first,) = windows.merged(busy, KINDS, 0)
    assert len(first.values) == VALUES_AT_ONCE
    steps = {b - a for a, b in itertools.pairwise(first.values)}
    assert steps == {15, 16}
    (second,) = windows.merged(busy, KINDS, 1)
    assert len(second.values) == VALUES_PER_S
    few = [Update("h", range(50))]
    assert list(windows.merged(few, KINDS, 100)[0].values) == list(range(50))


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 5)), max_size=40))
def test_a_histogram_takes_no_more_than_it_may_and_never_nothing_of_something(
    steps: list[tuple[int, float]],
) -> None:
    windows, now_s, taken = Windows(), 0.0, 0
    for count, pause_s in steps:
        now_s += pause_s
        (update,) = windows.merged([Update("h", range(count))], KINDS, now_s)
        assert bool(update.values) == bool(count)
        assert list(update.values) == sorted(set(update.values))
        taken += len(update.values)
    assert taken <= VALUES_AT_ONCE + VALUES_PER_S * now_s + len(steps)
