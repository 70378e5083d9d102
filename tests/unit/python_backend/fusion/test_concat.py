"""A mixture is exactly the weighted sum of its parts' changes."""

from __future__ import annotations

import numpy as np
import pytest

from python_backend.fusion.concat import Factors, fuse, summed_ranks

NUMBERS = np.random.default_rng(7)


def factors(rank: int, scale: float, dtype: type = np.float32) -> Factors:
    a, b = NUMBERS.normal(0, 1, (rank, 12)), NUMBERS.normal(0, 1, (20, rank))
    return Factors(a.astype(dtype), b.astype(dtype), scale)


def delta(part: Factors) -> np.ndarray:
    return part.scale * (part.b.astype(np.float64) @ part.a.astype(np.float64))


def test_the_sum_of_the_changes() -> None:
    parts = [(factors(3, 2.0), 0.6), (factors(5, 0.5, np.float16), -0.4), (factors(1, 8.0), 0.0)]
    a, b = fuse(parts)
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((9, 12), (20, 9), np.float32, np.float32)
    wanted = sum(weight * delta(part) for part, weight in parts)
    np.testing.assert_allclose(b @ a, wanted, rtol=0, atol=1e-5)


def test_halves_are_multiplied_in_single_precision() -> None:
    part = Factors(np.ones((1, 1), np.float16), np.full((1, 1), 1 + 2**-10, np.float16), 1.0)
    _, b = fuse([(part, 1 / 3)])
    assert b[0, 0] == np.float32(1 / 3) * np.float32(1 + 2**-10)
    assert b[0, 0] != np.float16(b[0, 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sources_are_left_as_they_are(dtype: type) -> None:
    part = factors(2, 1.5, dtype)
    before = part.a.copy(), part.b.copy()
    fuse([(part, 0.5), (part, 0.5)])
    np.testing.assert_array_equal(part.a, before[0])
    np.testing.assert_array_equal(part.b, before[1])


def test_a_module_that_a_part_lacks_has_rank_0_there() -> None:
    assert summed_ranks([{"q": 8, "v": 4}, {"q": 16}, {"o": 1}]) == {"q": 24, "v": 4, "o": 1}
