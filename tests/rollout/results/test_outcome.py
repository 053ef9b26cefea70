"""Outcomes: the user's own reward function is loaded or refused by name, and total once it is asked."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.errors import ConfigError
from orl_core.reward import reduce_reward
from orl_core.trajectory import StopReason, Trajectory
from orl_rollout.results.outcome import load_reward, outcome_of

from tests.kit.strategies import trajectories
from tests.kit.trajectories import environment, played

HERE = "tests.rollout.results.test_outcome"


def turns(trajectory: Trajectory) -> float:
    return len(trajectory.turns)


async def later(trajectory: Trajectory) -> float:
    return len(trajectory.turns)


def two(trajectory: Trajectory, other: Trajectory) -> float:
    return len(trajectory.turns) + len(other.turns)


def test_reward_function_replaces_reduction_and_is_clamped():
    function = load_reward(f"{HERE}:turns")
    assert function is turns
    outcome = outcome_of(played([5.0, 5.0]), environment(success_reward=2.0, nonterminal_reward=-9.0), function)
    assert (outcome.reward, outcome.success) == (2.0, True)
    assert {datum.reward for datum in outcome.datums} <= {2.0}
    assert outcome_of(played([5.0, 5.0]), environment(max_reward=0.5), function).reward == 0.5


@pytest.mark.parametrize("reason", StopReason)
def test_what_ended_in_error_is_no_success_whatever_the_bar(reason: StopReason):
    outcome = outcome_of(structs.replace(played([5.0]), stop_reason=reason), environment(success_reward=-1.0))
    assert outcome.success is (reason is not StopReason.ERROR)
    assert outcome.reward == (0.0 if reason is StopReason.ERROR else 5.0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:score", "ModuleNotFoundError"),
        (f"{HERE}:no_such_function", "AttributeError"),
        (f"{HERE}:HERE", "is no plain function"),
        (f"{HERE}:later", "is no plain function"),
        (f"{HERE}:two", "missing a required argument"),
    ],
)
def test_a_reward_function_that_cannot_be_used_is_refused_by_name(name: str, why: str):
    module, _, attribute = name.partition(":")
    with pytest.raises(ConfigError) as refusal:
        load_reward(name)
    assert all(said in str(refusal.value) for said in (f"`{module}`", f"`{attribute}`", why))


@given(given_back=st.none() | st.text() | st.floats() | st.integers() | st.fractions() | st.just([1.0]))
def test_whatever_a_function_returns_the_outcome_is_finite_or_an_error(given_back: object):
    outcome = outcome_of(played([1.0]), environment(), lambda _: given_back)  # type: ignore[arg-type,return-value]
    finite = isinstance(given_back, int | float | Fraction) and -1e18 < given_back < 1e18
    assert math.isfinite(outcome.reward)
    if finite:
        assert outcome.reward == float(given_back)  # type: ignore[arg-type]
    if outcome.trajectory.stop_reason is StopReason.ERROR:
        assert "the reward function" in outcome.trajectory.error
        assert not finite
        assert not outcome.success
        assert outcome.reward == 0.0


@given(trajectory=trajectories)
def test_a_function_that_raises_makes_an_error_that_does_not_train(trajectory: Trajectory):
    def broken(_: Trajectory) -> float:
        raise KeyError("answer")

    outcome = outcome_of(trajectory, environment(), broken)
    if trajectory.stop_reason is StopReason.ABORTED:
        assert (outcome.trajectory, outcome.reward) == (trajectory, reduce_reward(trajectory, environment()))
        return
    assert outcome.trajectory.stop_reason is StopReason.ERROR
    assert (outcome.reward, outcome.success) == (0.0, False)
    assert not any(any(datum.loss_mask) or datum.trainable for datum in outcome.datums)
    if trajectory.stop_reason is not StopReason.ERROR:
        assert outcome.trajectory.error == "the reward function: KeyError: 'answer'"
