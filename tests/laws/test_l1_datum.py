"""L1, the pure half: a datum is the trajectory's own ids in order, and only the engine's ids are marked sampled."""

from hypothesis import given
from orl_core.datum import to_data
from orl_core.trajectory import Trajectory

from tests.kit.strategies import masked_trajectories, stripped_trajectories, trajectories
from tests.laws.checks import check_data


@given(trajectory=trajectories)
def test_what_trains_is_what_was_sampled(trajectory: Trajectory):
    check_data(trajectory, to_data(trajectory, reward=0.5))


@given(trajectory=masked_trajectories)
def test_of_what_was_sampled_trains_what_the_policy_says(trajectory: Trajectory):
    check_data(trajectory, to_data(trajectory, reward=0.5))


@given(trajectory=stripped_trajectories)
def test_stripped_reasoning_splits_a_trajectory_into_exact_data(trajectory: Trajectory):
    data = to_data(trajectory, reward=0.5)
    check_data(trajectory, data)
    sampled = sum(len(turn.action_ids) for turn in trajectory.turns)
    assert sum(sum(datum.sampled) for datum in data) == sampled
    assert {datum.rollout_id for datum in data} <= {trajectory.job.rollout_id}


@given(trajectory=trajectories)
def test_turns_that_only_append_stay_one_datum(trajectory: Trajectory):
    assert len(to_data(trajectory, reward=0.0)) == any(turn.action_ids for turn in trajectory.turns)


@given(trajectory=stripped_trajectories)
def test_a_datum_carries_what_names_it(trajectory: Trajectory):
    data = to_data(trajectory, reward=0.25)
    if data:
        carried = sum(len(datum.weight_versions) for datum in data)
        answered = [turn for turn in trajectory.turns if turn.action_ids]
        assert carried >= sum(len(turn.generations) for turn in answered)
        paid = [turn.reward for turn in answered if turn.reward is not None]
        assert [reward for datum in data for _, reward in datum.rewards] == paid
        for datum in data:
            ends = [place for place, _ in datum.rewards]
            assert ends == sorted(set(ends))
            assert all(datum.sampled[place] for place in ends)
    for datum in data:
        assert (datum.rollout_id, datum.task_key) == (trajectory.job.rollout_id, trajectory.job.task.key)
        assert datum.reward == 0.25
