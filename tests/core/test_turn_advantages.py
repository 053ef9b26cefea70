"""Advantages of turns: the gradient that they estimate is exact, by enumeration of a small process."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.reward import turn_advantages

from tests.kit.strategies import modest

Path = tuple[tuple[int, int], ...]  # (state, action) of each turn
HORIZON, THETA = 3, (0.3, -0.8, 1.1, 0.2, -0.4, 0.7, -1.3)  # a logit for each state; a state is a node of a tree


def probability(state: int, action: int) -> float:
    one = 1 / (1 + math.exp(-THETA[state]))
    return one if action else 1 - one


def score(state: int, action: int) -> float:
    """Return d log p(action) / d theta[state]."""
    return action - probability(state, 1)


def paid(state: int, action: int) -> float:
    return math.sin(3.0 * state + 1.7 * action)


def paths() -> list[tuple[Path, float]]:
    """Return every episode with its probability. Action 1 in state 2 ends an episode early."""
    found: list[tuple[Path, float]] = []

    def walk(path: Path, state: int, likely: float) -> None:
        for action in (0, 1):
            longer, chance = (*path, (state, action)), likely * probability(state, action)
            if len(longer) == HORIZON or (state, action) == (2, 1):
                found.append((longer, chance))
            else:
                walk(longer, 2 * state + 1 + action, chance)

    walk((), 0, 1.0)
    return found


def returns(path: Path) -> list[float]:
    rewards = [paid(*step) for step in path]
    return [sum(rewards[turn:]) for turn in range(len(rewards))]


def exact_gradient() -> list[float]:
    """Return the gradient of the expected reward, by the likelihood ratio of whole episodes."""
    gradient = [0.0] * len(THETA)
    for path, likely in paths():
        for state, action in path:
            gradient[state] += likely * returns(path)[0] * score(state, action)
    return gradient


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("center", [True, False])
def test_policy_gradient_of_turns_has_no_bias(size: int, center: bool):
    assert sum(likely for _, likely in paths()) == pytest.approx(1.0, abs=1e-12)
    estimated = [0.0] * len(THETA)
    for group in itertools.product(paths(), repeat=size):
        likely = math.prod(chance for _, chance in group)
        found = turn_advantages(
            [returns(path) for path, _ in group], [0] * size, [True] * size, center=center, scale=False
        )
        for (path, _), advantages in zip(group, found, strict=True):
            for (state, action), advantage in zip(path, advantages, strict=True):
                estimated[state] += likely * advantage * score(state, action) / size
    assert estimated == pytest.approx(exact_gradient(), abs=1e-9)


@given(
    returns=st.lists(st.lists(modest, max_size=3), min_size=1, max_size=5),
    trains=st.lists(st.booleans(), min_size=5, max_size=5),
    center=st.booleans(),
    scale=st.booleans(),
)
def test_rollouts_that_do_not_train_change_no_turn(
    returns: list[list[float]], trains: list[bool], center: bool, scale: bool
):
    trains = trains[: len(returns)]
    found = turn_advantages(returns, [0] * len(returns), trains, center=center, scale=scale)
    kept = [index for index, trained in enumerate(trains) if trained]
    alone = turn_advantages(
        [returns[index] for index in kept], [0] * len(kept), [True] * len(kept), center=center, scale=scale
    )
    assert [found[index] for index in kept] == alone
    assert all(value == 0.0 for index, values in enumerate(found) if not trains[index] for value in values)
    assert [len(values) for values in found] == [len(values) for values in returns]
    assert all(math.isfinite(value) for values in found for value in values)


def test_equal_rewards_paid_on_different_ways_are_not_blown_up():
    """Guesses that pay for what they rule out have equal sums if all win, but not from the second guess on."""
    paid = [[0.1, 0.2, 1.0], [0.2, 0.1, 1.0], [0.15, 0.15, 1.0], [0.3, 1.0]]
    returns = [[math.fsum(one[turn:]) for turn in range(len(one))] for one in paid]
    found = turn_advantages(returns, [0] * 4, [True] * 4, center=True, scale=True)
    assert max(abs(advantage) for turns in found for advantage in turns) < 5
    assert math.fsum(advantage**2 for turns in found for advantage in turns) == pytest.approx(11, rel=1e-3)  # one each


@given(returns=st.lists(st.lists(modest, min_size=1, max_size=4), min_size=1, max_size=6), center=st.booleans())
def test_scaled_advantages_have_a_bound(returns: list[list[float]], center: bool):
    found = turn_advantages(returns, [0] * len(returns), [True] * len(returns), center=center, scale=True)
    turns = [advantage for own in found for advantage in own]
    assert max(map(abs, turns)) <= math.sqrt(len(turns)) + 1e-9
