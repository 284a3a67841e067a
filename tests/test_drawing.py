"""The pieces of a draw against sorting and adding up one by one; what is drawn in all is tested with the sampler."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qwill.drawing import SUM_BLOCK, at_least_kth, position


@settings(deadline=None)
@given(
    seed=st.integers(0, 999), size=st.integers(1, 3000), k=st.integers(1, 200), distinct=st.sampled_from([2, 9, 10**6])
)
def test_the_k_largest_are_those_of_a_full_sort(seed: int, size: int, k: int, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, distinct, size).astype(np.float32)
    values[rng.random(size) < rng.random()] = -math.inf
    finite = sorted((value for value in values.tolist() if value > -math.inf), reverse=True)
    low = finite[min(k, len(finite)) - 1] if finite else math.inf
    assert at_least_kth(values, k).tolist() == [i for i, value in enumerate(values.tolist()) if value >= low]


@settings(deadline=None)
@given(seed=st.integers(0, 999), size=st.integers(1, 3 * SUM_BLOCK), share=st.floats(0, 1))
def test_a_share_of_the_total_falls_where_adding_up_one_by_one_says(seed: int, size: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, size).astype(np.float32)
    weights[rng.integers(size)] = 1.0
    found = position(weights, share)
    point = Fraction(share) * int(weights.sum())
    before, after = int(weights[:found].sum()), int(weights[: found + 1].sum())
    assert weights[found] > 0
    tiny = Fraction(1, 10**9)  # the point itself is rounded
    assert before - tiny <= point <= after + tiny
