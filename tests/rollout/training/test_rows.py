"""Rows of every trainer: each estimator, several rows, failures, turns and groups (laws L3 and L7)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orl_core.errors import ConfigError
from orl_core.estimators import ESTIMATORS, Estimator, estimator_named
from orl_core.trajectory import StopReason
from orl_rollout.results.outcome import Outcome
from orl_rollout.training.rows import Row, rows_of, trained_ids

from tests.kit.paid_turns import Turns, outcome, split, turns_of

SIZE = 3
batches = st.lists(turns_of, min_size=SIZE, max_size=2 * SIZE).map(lambda batch: batch[: len(batch) // SIZE * SIZE])
of_each = [(one, turns) for one in ESTIMATORS.values() for turns in (False, True) if one.turns or not turns]
each = pytest.mark.parametrize(
    ("estimator", "turns"), of_each, ids=[f"{one.name}{' turns' * turns}" for one, turns in of_each]
)
any_of_each = st.sampled_from(of_each)
thrice = settings(max_examples=3 * settings().max_examples)


def gained(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """The ids that train, in order, with their advantages; those of all others must be 0."""
    found: list[tuple[int, float]] = []
    for row in rows:
        assert len(row.advantages) == len(row.datum.response)
        for token, trains, advantage in zip(row.datum.response, row.datum.loss_mask, row.advantages, strict=True):
            assert trains or advantage == 0.0
            found += [(token, advantage)] if trains else []
    return found


@thrice
@given(batch=batches, one=any_of_each)
def test_rollout_counts_once_in_one_row_or_several(batch: list[Turns], one: tuple[Estimator, bool]) -> None:
    estimator, turns = one
    whole = list(map(outcome, batch))
    rows = rows_of(whole, SIZE, estimator, turns=turns)
    several = rows_of(list(map(split, whole)), SIZE, estimator, turns=turns)
    assert gained(several) == gained(rows)
    assert trained_ids(several) == trained_ids(rows) == sum(len(ids) for one in batch for _, ids, _ in one)


@thrice
@given(batch=st.lists(turns_of, min_size=SIZE, max_size=SIZE), one=any_of_each)
def test_failure_has_no_part(batch: list[Turns], one: tuple[Estimator, bool]) -> None:
    estimator, turns = one
    played = list(map(outcome, batch))
    failed = outcome([([1], [2], 9.0)], StopReason.ERROR)
    expected = rows_of(played, SIZE, estimator, turns=turns)
    assert rows_of([*played, failed], SIZE + 1, estimator, turns=turns) == expected


@each
def test_groups_are_apart_and_adjacent(estimator: Estimator, turns: bool) -> None:
    def group(*rewards: float) -> list[Outcome]:
        return [outcome([([1], [at + 2], reward)]) for at, reward in enumerate(rewards)]

    low, high = group(0.0, 1.0, 0.25), group(5.0, 9.0, 7.0)
    apart = [*rows_of(low, SIZE, estimator, turns=turns), *rows_of(high, SIZE, estimator, turns=turns)]
    assert rows_of([*low, *high], SIZE, estimator, turns=turns) == apart
    if estimator.center:
        assert sum(advantage for _, advantage in gained(apart[:SIZE])) == pytest.approx(0.0, abs=1e-6)
    else:
        assert [advantage for _, advantage in gained(apart)] == [0.0, 1.0, 0.25, 5.0, 9.0, 7.0]


def test_turn_gets_the_reward_from_there_on() -> None:
    first, second = outcome([([1], [2], 1.0), ([3], [4, 5], 2.0)]), outcome([([1], [6], 1.0)])
    rows = rows_of([first, second], 2, Estimator(name="mean", center=True), turns=True)
    assert gained(rows) == [(2, 2.0), (4, 2.0), (5, 2.0), (6, -2.0)]  # 3 against 1, then 2 that nobody else reached


def test_unknown_estimator_is_refused() -> None:
    with pytest.raises(ConfigError, match="vtrace"):
        estimator_named("vtrace")
