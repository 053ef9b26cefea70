"""Rewards and advantages are total, finite and bounded; the reductions are what their names say."""

import math
import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orl_core.config import GroupRewardConfig
from orl_core.reward import group_advantages, group_rewards, reaches, reduce_reward, reduce_rewards
from orl_core.trajectory import StopReason

from tests.kit.strategies import finite, modest
from tests.kit.trajectories import environment, played

REDUCTIONS = ["sum", "mean", "max", "min", "last"]


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", 6.0), ("mean", 2.0), ("max", 4.0), ("min", -1.0), ("last", 3.0)]
)
def test_reductions(reduction: str, expected: float):
    trajectory = played([4.0, None, -1.0, 3.0])
    assert reduce_reward(trajectory, environment(reward_reduction=reduction)) == expected


@pytest.mark.parametrize("rewards", [[0.7, 0.2, 0.1], [0.1] * 10, [0.3, 0.6, 0.1], [1 / 6] * 6])
def test_partial_rewards_sum_to_full_marks(rewards: list[float]):
    assert reduce_rewards(rewards, "sum") == 1.0


@given(rewards=st.lists(modest, min_size=1, max_size=20))
def test_sum_is_the_nearest_number(rewards: list[float]):
    assert reduce_rewards(rewards, "sum") == pytest.approx(float(sum(map(Fraction, rewards))), rel=1e-15, abs=1e-300)


def test_null_is_not_zero():
    assert reduce_reward(played([None, 1.0]), environment(reward_reduction="mean")) == 1.0
    assert reduce_reward(played([None, None]), environment(reward_reduction="max", min_reward=-5)) == 0.0


def test_the_nonterminal_reward_counts_only_without_an_end():
    config = environment(nonterminal_reward=-1.0)
    assert reduce_reward(played([0.5]), config) == 0.5
    assert reduce_reward(played([0.5], StopReason.MAX_TURNS), config) == -0.5
    assert reduce_reward(played([0.5], StopReason.MAX_TURNS), environment()) == 0.5


@given(rewards=st.lists(st.none() | st.floats(), max_size=6), reduction=st.sampled_from(REDUCTIONS))
@example(rewards=[sys.float_info.max] * 3, reduction="mean")
@example(rewards=[sys.float_info.max] * 3, reduction="sum")
def test_reduce_reward_is_total_finite_and_bounded(rewards: list[float | None], reduction: str):
    assert math.isfinite(reduce_reward(played(rewards), environment(reward_reduction=reduction)))
    clamped = reduce_reward(played(rewards), environment(reward_reduction=reduction, min_reward=-1, max_reward=1))
    assert -1 <= clamped <= 1


def test_reward_reaches_another_to_within_a_share_of_it():
    assert reaches(-1.0 - 1e-12, -1.0)
    assert not reaches(0.0, 1e-9)


def test_reduce_rewards_says_what_it_does():
    assert reduce_rewards([0.5, 1.0]) == reduce_reward(played([0.5, 1.0]), environment()) == 1.5
    assert reduce_rewards([0.5, 1.0], "mean") == 0.75
    assert reduce_rewards([0.5, 1.0, None], "mean", terminal=False, nonterminal=-0.5, lower=0, upper=0.7) == 1 / 3
    assert reduce_rewards([], "max", lower=-5) == 0.0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rewards": [0.5, math.nan]}, r"rewards\[1\]"),
        ({"rewards": [0.5], "how": "average"}, "average"),
        ({"rewards": [0.5], "upper": math.inf}, "upper"),
        ({"rewards": [0.5], "lower": 1, "upper": 0}, "lower"),
    ],
)
def test_reduce_rewards_names_what_is_wrong(options: dict[str, Any], named: str):
    with pytest.raises(ValueError, match=named):
        reduce_rewards(**options)


@pytest.mark.parametrize(("mode", "expected"), [("off", [1.0, 0.5]), ("only", [4.0, 0.5]), ("blend", [9.0, 0.5])])
def test_group_scores_replace_add_or_change_nothing(mode: Any, expected: list[float]):
    assert group_rewards([1.0, 0.5], [4.0, None], GroupRewardConfig(mode=mode, weight=2.0)) == expected


@given(
    columns=st.lists(st.tuples(modest, st.none() | st.floats()), max_size=6),
    mode=st.sampled_from(["only", "blend"]),
    weight=finite,
)
def test_group_rewards_are_finite_and_bounded(columns: list[tuple[float, float | None]], mode: Any, weight: float):
    rewards, scores = [reward for reward, _ in columns], [score for _, score in columns]
    found = group_rewards(rewards, scores, GroupRewardConfig(mode=mode, weight=weight))
    assert all(abs(reward) <= 1e18 for reward in found)
    for reward, score, blended in zip(rewards, scores, found, strict=True):
        assert blended == reward if score is None or not math.isfinite(score) else True


@given(rewards=st.lists(modest, min_size=2, max_size=8))
def test_one_group_is_the_textbook_formula(rewards: list[float]):
    n = len(rewards)
    got = group_advantages(rewards, [0] * n, list(range(n)), [True] * n, center=True, scale=True)
    exact = [Fraction(reward) for reward in rewards]
    mean = sum(exact) / n
    deviation = math.sqrt(sum((value - mean) ** 2 for value in exact) / (n - 1))
    assert got == pytest.approx([float(value - mean) / (deviation + 1e-6) for value in exact], rel=1e-6, abs=1e-6)


@st.composite
def batches(draw: st.DrawFn):
    size = draw(st.integers(1, 12))
    column = lambda members: draw(st.lists(members, min_size=size, max_size=size))  # noqa: E731
    return column(modest), column(st.integers(0, 3)), column(st.booleans())


@given(batch=batches(), center=st.booleans(), scale=st.booleans())
def test_members_that_do_not_train_change_nothing(batch, center: bool, scale: bool):
    rewards, groups, trains = batch
    ids = list(range(len(rewards)))
    full = group_advantages(rewards, groups, ids, trains, center=center, scale=scale)
    kept = [index for index in ids if trains[index]]
    alone = group_advantages(
        [rewards[i] for i in kept], [groups[i] for i in kept], kept, [True] * len(kept), center=center, scale=scale
    )
    assert [full[index] for index in kept] == alone
    assert all(full[index] == 0.0 for index in ids if not trains[index])
    assert all(map(math.isfinite, full))


@given(batch=batches(), copies=st.integers(2, 4))
def test_a_split_rollout_counts_once(batch, copies: int):
    rewards, groups, trains = batch
    ids = list(range(len(rewards)))
    once = group_advantages(rewards, groups, ids, trains, center=True, scale=True)

    def repeat(column: list[Any]) -> list[Any]:
        return [value for value in column for _ in range(copies)]

    split = group_advantages(repeat(rewards), repeat(groups), repeat(ids), repeat(trains), center=True, scale=True)
    assert split == [value for value in once for _ in range(copies)]


@given(
    rewards=st.lists(st.floats(-1e18, 1e18), min_size=1, max_size=8),
    groups=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    trains=st.lists(st.booleans(), min_size=8, max_size=8),
    center=st.booleans(),
    scale=st.booleans(),
)
def test_advantages_of_reduced_rewards_are_finite(rewards, groups, trains, center, scale):
    size = len(rewards)
    found = group_advantages(rewards, groups[:size], range(size), trains[:size], center=center, scale=scale)
    assert all(map(math.isfinite, found))
    if center and scale:
        assert all(abs(advantage) <= math.sqrt(size) for advantage in found)


@given(reward=finite)
def test_a_lone_member_gets_no_advantage(reward: float):
    assert group_advantages([reward], [0], [0], [True], center=True, scale=True) == [0.0]
