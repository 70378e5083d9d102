from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.admission.bounds import Bounds, TokenBucket
from python_backend.admission.limits import Limits, Share
from python_backend.errors import InvalidArgument, Overloaded


def limits(**bounds: int) -> Limits:
    options = {"max_pending": 10, "max_pending_per_department": 6, "max_pending_tokens": 100}
    return Limits(4, 2, **{**options, **bounds})


def test_a_department_and_all_together() -> None:
    bounds = Bounds(limits())
    bounds.enter("fin", 6, 1)
    with pytest.raises(Overloaded) as caught:
        bounds.enter("fin", 1, 7)
    assert "your requests" in caught.value.message and caught.value.retry_after == 7
    bounds.enter("svc", 4, 1)
    with pytest.raises(Overloaded):
        bounds.enter("qa", 1, 1)
    assert (bounds.pending, bounds.total) == ({"fin": 6, "svc": 4}, 10)
    bounds.leave("fin", 6)
    bounds.leave("svc", 4)
    assert (bounds.pending, bounds.total) == ({}, 0)


def test_n_counts_as_n() -> None:
    bounds = Bounds(limits())
    with pytest.raises(Overloaded):
        bounds.enter("fin", 7, 1)
    assert bounds.total == 0


def test_prompt_tokens() -> None:
    bounds = Bounds(limits())
    bounds.add_tokens(1000, 1)  # alone, whatever its length
    with pytest.raises(Overloaded):
        bounds.add_tokens(1, 1)
    bounds.remove_tokens(1000)
    bounds.add_tokens(60, 1)
    bounds.add_tokens(40, 1)
    assert bounds.tokens == 100


def test_tokens_per_minute() -> None:
    bounds = Bounds(limits(), {"fin": Share(tokens_per_minute=600)})
    assert bounds.spend("fin", 500, 0.0)
    with pytest.raises(Overloaded) as caught:
        bounds.spend("fin", 200, 0.0)
    # 100 more at 10 a second.
    assert caught.value.retry_after == 10
    assert bounds.spend("fin", 200, 10.0)
    bounds.refund("fin", 150)
    assert bounds.spend("fin", 150, 10.0)
    with pytest.raises(InvalidArgument) as refused:
        bounds.spend("fin", 601, 10.0)
    assert "600" in refused.value.message
    assert bounds.spend("svc", 10**9, 10.0) is False


def test_a_changed_policy() -> None:
    bounds = Bounds(limits(), {"fin": Share(tokens_per_minute=60)})
    assert bounds.spend("fin", 60, 0.0)
    bounds.set_shares({"fin": Share(tokens_per_minute=120)})
    assert bounds.spend("fin", 120, 0.0)
    bounds.set_shares({})
    assert bounds.spend("fin", 1000, 0.0) is False
    bounds.refund("fin", 120)  # of before; nothing to give back to


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 100)), max_size=40))
def test_a_bucket_never_gives_more_than_its_rate(takes: list[tuple[float, int]]) -> None:
    bucket, now_s, given_out = TokenBucket(100, 0.0), 0.0, 0
    for pause_s, tokens in takes:
        now_s += pause_s
        wait_s = bucket.take(tokens, now_s)
        if not wait_s:
            given_out += tokens
        else:
            assert 0 < wait_s <= 60
        assert given_out <= 100 + 100 * now_s / 60 + 1e-6
