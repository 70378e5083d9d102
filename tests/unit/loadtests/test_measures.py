"""Figures of a run that one can work out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from loadtests.measures import MEASURES, Seen, measured
from loadtests.results import Change, Request, Sample
from tests.unit.loadtests.records import request, sample

CALM = 10.0


def good(t: float, ttft: float, **changes: Any) -> Request:
    return request(t, ttft=ttft, total=2 * ttft, **changes)


def seen(
    *requests: Request, samples: tuple[Sample, ...] = (), changes: tuple[Change, ...] = ()
) -> Seen:
    return Seen(requests, samples, seconds=20.0, calm_s=CALM, changes=changes)


def test_routes_count_what_could_be_checked() -> None:
    run = seen(
        request(1.0), request(2.0, route="wrong", department="svc"), request(3.0, route="unchecked")
    )
    assert measured(run, "wrong_routes") == (1.0, 2)
    assert measured(run, "wrong_routes.svc") == (1.0, 1)
    assert measured(run, "wrong_routes.mark") == (0.0, 1)


def test_errors_are_a_share_of_the_good_calls() -> None:
    run = seen(
        request(1.0),
        request(2.0, outcome="overloaded"),
        request(3.0, kind="cancel", outcome="cancelled"),
        request(4.0, kind="forbidden", outcome="not_found"),
        request(5.0, kind="forbidden", outcome="ok"),
        request(6.0, kind="malformed", outcome="invalid_argument"),
    )
    assert measured(run, "errors") == (0.5, 2)
    assert measured(run, "errors.nobody") == (None, 0)
    assert measured(run, "let_in") == (1.0, 3)
    assert measured(run, "requests") == (6.0, 6)


def test_times_are_of_what_comes_after_the_calm() -> None:
    before = [good(t / 20, 0.1) for t in range(100)]
    after = [good(CALM + t / 20, 0.2 + t / 100) for t in range(100)]
    run = seen(*before, *after, good(CALM + 1, 9.0, outcome="overloaded"))
    assert measured(run, "ttft_p50") == (pytest.approx(0.7), 100)
    assert measured(run, "ttft_p99.mark") == (pytest.approx(1.19), 100)
    assert measured(run, "total_p50") == (pytest.approx(1.4), 100)
    assert measured(run, "ttft_p50_ratio") == (pytest.approx(7.0), 100)
    assert measured(run, "ttft_p50_ratio.nobody") == (None, 0)


def test_gaps_and_tokens() -> None:
    run = seen(
        request(1.0, gaps=(0.1, 0.2), tokens=8),
        request(CALM, gaps=(0.1, 0.5), tokens=12),
        request(CALM, gaps=(), tokens=1),
    )
    assert measured(run, "longest_gap_p50_ratio") == (pytest.approx(2.5), 1)
    assert measured(run, "tokens_per_s") == (pytest.approx(21 / 20), 3)


def test_the_load_generators_delay() -> None:
    loops = [request(t, sent=t) for t in range(900)]
    due = [request(t / 10, sent=t / 10 + (0.5 if t == 99 else 0.01)) for t in range(100)]
    run = seen(*loops, *due)
    assert measured(run, "late_p99") == (pytest.approx(0.5), 100)


def test_breakers_open_and_close() -> None:
    def state(value: float) -> Sample:
        name = 'lora_breaker_state{model="vllm_lora",signal="switch_rate"}'
        return sample(metrics={name: value, 'lora_breaker_state{signal="routing"}': 0.0})

    run = seen(samples=(state(0), state(2), state(2), state(3), state(0)))
    assert measured(run, "open_s.switch_rate") == (3.0, 5)
    assert measured(run, "open_at_end.switch_rate") == (0.0, 1)
    assert measured(run, "open_s.routing") == (0.0, 5)
    assert measured(seen(), "open_at_end.routing") == (0.0, 0)


def test_growth_is_the_end_over_the_beginning() -> None:
    sizes = [10, 50, 100, 100, 90, 120, 130, 110, 110, 112]
    run = seen(samples=tuple(sample(rss={"a": size, "b": size}) for size in sizes))
    assert measured(run, "rss_growth") == (pytest.approx(111 / 100 - 1), 10)
    assert measured(run, "fds_growth") == (0.0, 10)
    down = seen(samples=tuple(sample(metrics=None) for _ in range(10)))
    assert measured(down, "rss_growth") == (None, 0)


def test_changes_that_failed() -> None:
    fine = Change(t=1, what="add", lora_id="fin_a_v1", seconds=0.5, error=None)
    run = seen(changes=(fine, fine.model_copy(update={"error": "not_found: no."})))
    assert measured(run, "changes_failed") == (1.0, 2)


def test_every_measure_can_do_without_records() -> None:
    for name in MEASURES:
        value, samples = measured(seen(), name)
        assert samples == 0
        assert value in (None, 0.0)
