from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.admission import Admission
from python_backend.errors import Overloaded


def test_places_are_counted_by_department() -> None:
    admission = Admission(3)
    with admission.lease("fin"), admission.lease("svc"), admission.lease("fin"):
        assert admission.under_way == {"fin": 2, "svc": 1}
        assert admission.total == 3
        with pytest.raises(Overloaded) as caught, admission.lease("qa"):
            pytest.fail("there was a place")
        assert caught.value.retry_after == 1
        assert admission.under_way == {"fin": 2, "svc": 1}
    assert (admission.under_way, admission.total) == ({}, 0)


def test_an_error_inside_releases() -> None:
    admission = Admission(1)
    for _ in range(3):
        with pytest.raises(KeyError), admission.lease("fin"):
            raise KeyError
        assert admission.total == 0


@given(
    st.lists(st.tuples(st.sampled_from(["fin", "svc", "qa"]), st.integers(0, 5))), st.integers(1, 6)
)
def test_never_above_the_limit_never_below_zero(steps: list[tuple[str, int]], limit: int) -> None:
    """Leases entered and left in any order, against a list that counts the same."""
    admission, held = Admission(limit), []
    for department, leave in steps:
        if leave and held:
            _, lease = held.pop(leave % len(held))
            lease.__exit__(None, None, None)
            continue
        lease = admission.lease(department)
        if len(held) == limit:
            with pytest.raises(Overloaded):
                lease.__enter__()
        else:
            lease.__enter__()
            held.append((department, lease))
        assert admission.total == len(held)
        expected = {d: sum(1 for name, _ in held if name == d) for d, _ in held}
        assert admission.under_way == expected
    for _, lease in held:
        lease.__exit__(None, None, None)
    assert (admission.under_way, admission.total) == ({}, 0)
