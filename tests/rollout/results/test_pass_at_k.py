"""pass@k: the closed form equals counting all choices, and its mean covers tasks of unequal size."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_rollout.results.metrics import mean_pass_at_k, pass_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_it_is_the_share_of_choices_that_hold_a_success(outcomes: list[bool], data: st.DataObject) -> None:  # shows A21
    k = data.draw(st.integers(1, len(outcomes)))
    choices = list(combinations(outcomes, k))
    expected = sum(map(any, choices)) / len(choices)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(expected)


@given(st.integers(1, 200), st.data())
def test_it_grows_with_k_and_starts_at_the_success_rate(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    values = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert values[0] == pytest.approx(c / n)
    assert values == sorted(values)
    assert values[-1] == (1.0 if c else 0.0)


@pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (3, 4, 1), (3, 1, 4), (3, -1, 2), (3, 1, 0)])
def test_it_is_not_defined_for_other_numbers(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)


def test_mean_over_tasks_for_doubling_k_all_tasks_have() -> None:
    means = mean_pass_at_k({"a": [True, False, False, False, False], "b": [True] * 6, "c": []})
    assert means == {1: pytest.approx(0.6), 2: pytest.approx(0.7), 4: pytest.approx(0.9), 5: pytest.approx(1.0)}
    assert mean_pass_at_k({}) == {}
