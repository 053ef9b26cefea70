"""L1, the pure half: a datum is the trajectory's own ids in order, and only the engine's ids are marked sampled."""

import math

import pytest
from hypothesis import given
from orl_core.datum import Datum, to_data
from orl_core.limits import Limits, TrainOn
from orl_core.messages import Action, FailureKind, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn

from tests.kit.strategies import masked_trajectories, stripped_trajectories, trees
from tests.laws.checks import check_data, check_tree


@given(trajectory=masked_trajectories)
def test_what_trains_is_what_was_sampled_and_the_policy_says(trajectory: Trajectory):
    data = to_data(trajectory, reward=0.5)
    check_data(trajectory, data)
    assert len(data) == any(turn.action_ids for turn in trajectory.turns)  # turns that only append stay one


@given(trajectory=stripped_trajectories)
def test_stripped_reasoning_splits_a_trajectory_into_exact_data(trajectory: Trajectory):
    data = to_data(trajectory, reward=0.25)
    check_data(trajectory, data)
    answered = [turn for turn in trajectory.turns if turn.action_ids]
    assert sum(sum(datum.sampled) for datum in data) == sum(len(turn.action_ids) for turn in answered)
    carried = sum(len(datum.weight_versions) for datum in data)
    assert carried == sum(bool(made.token_ids) for turn in answered for made in turn.generations)
    paid = [turn.reward for turn in answered if turn.reward is not None]
    assert [reward for datum in data for _, reward in datum.rewards] == paid
    for datum in data:
        ends = [place for place, _ in datum.rewards]
        assert ends == sorted(set(ends))
        assert all(datum.sampled[place] for place in ends)
        assert (datum.rollout_id, datum.task_key) == (trajectory.job.rollout_id, trajectory.job.task.key)
        assert datum.reward == 0.25


@given(trajectory=trees)
def test_each_turn_of_a_tree_trains_in_one_datum(trajectory: Trajectory):
    data = to_data(trajectory, reward=0.5)
    check_tree(trajectory, data)
    if data:  # the negative control
        with pytest.raises(AssertionError):
            check_tree(trajectory, (*data, data[-1]))


@pytest.mark.parametrize("continues", [-2, 1, 2])
def test_turn_that_continues_no_earlier_turn_is_refused(continues: int):
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k")
    turns = tuple(Turn(observation=(1,), generations=(), action=Action(), continues=one) for one in (None, continues))
    with pytest.raises(ValueError, match="turn 1"):
        Trajectory(job=job, turns=turns, stop_reason=StopReason.FINISHED)


def datum_of(*results: ToolResult, **policy: bool) -> Datum:
    """The datum of one turn of two ids with these results."""
    generation = Generation(token_ids=(1, 2), logprobs=(-0.5, -0.5), finish_reason="stop")
    turn = Turn(observation=(9,), generations=(generation,), action=Action(), results=results)
    limits = Limits(train_on=TrainOn(**policy))
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k", limits=limits)
    (datum,) = to_data(Trajectory(job=job, turns=(turn,), stop_reason=StopReason.FINISHED), reward=0.0)
    return datum


def test_non_finite_reward_leaves_other_rewards_of_the_turn():
    datum = datum_of(ToolResult(name="t", reward=math.nan), ToolResult(name="t", reward=0.5))
    assert datum.rewards == ((1, 0.5),)


def test_turn_that_failed_trains_only_if_failed_turns_do():
    failed = ToolResult(name="t", failure=FailureKind.INVALID_JSON)
    assert datum_of(failed).loss_mask == (1, 1)
    assert datum_of(failed, failed_turns=False).loss_mask == (0, 0)
    assert datum_of(failed, ToolResult(name="t"), failed_turns=False).loss_mask == (1, 1)
