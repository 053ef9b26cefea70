"""Wilson's interval: known values, and it always holds the rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_rollout.results.metrics import wilson


@pytest.mark.parametrize(
    ("rate", "n", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (0.0, 10, 0.0, 0.2775), (1.0, 20, 0.8389, 1.0), (0.3, 100, 0.2189, 0.3958)],
)
def test_wilson_gives_the_published_values(rate: float, n: int, low: float, high: float):
    assert wilson(rate, n) == pytest.approx((low, high), abs=5e-5)


@given(rate=st.floats(0, 1), n=st.integers(0, 10**6))
def test_wilson_holds_the_rate_within_bounds(rate: float, n: int):
    low, high = wilson(rate, n)
    assert 0 <= low <= rate + 1e-9
    assert rate - 1e-9 <= high <= 1
