"""L1, the pure half: a datum is the trajectory's own ids in order, and only the engine's ids are marked sampled."""

import pytest
from hypothesis import given
from msgspec import structs
from orl_core.config import TrainOn
from orl_core.datum import Datum, to_data
from orl_core.trajectory import Trajectory

from tests.strategies import stripped_trajectories, trajectories


def check_l1(trajectory: Trajectory, data: tuple[Datum, ...]) -> None:
    """Law L1, stated turn by turn and without the code under test: what was shown, then what was returned.

    The engine is shown what earlier turns left of themselves. A turn belongs to the datum that its predecessor belongs
    to, unless something of that one was hidden from it.
    """
    left = iter(data)
    datum: Datum | None = None
    shown: list[tuple[int, float | None]] = []  # every id so far, with its logprob where this datum's engine sampled it
    for turn in trajectory.turns:
        begins = len(shown)
        shown.extend((token, None) for token in turn.observation)
        opened = len(shown)
        for generation in turn.generations:
            shown.extend(zip(generation.ids, generation.logprobs, strict=True))
        if len(shown) > opened:
            datum = datum or next(left)
            assert (*datum.prompt, *datum.response)[: len(shown)] == tuple(token for token, _ in shown)
        if turn.hidden:
            _check_end(trajectory, datum, shown)
            gone = {begins + place for start, end in turn.hidden for place in range(start, end)}
            datum, shown = None, [(token, None) for place, (token, _) in enumerate(shown) if place not in gone]
    _check_end(trajectory, datum, shown)
    assert next(left, None) is None


def _check_end(trajectory: Trajectory, datum: Datum | None, shown: list[tuple[int, float | None]]) -> None:
    """The datum ends with the last sampled id; masks and logprobs are those of what it holds, place by place."""
    if datum is None:
        return
    while shown[-1][1] is None:
        shown = shown[:-1]
    assert (*datum.prompt, *datum.response) == tuple(token for token, _ in shown)
    size = len(datum.response)
    assert size == len(datum.sampled) == len(datum.loss_mask) == len(datum.logprobs)
    assert all(logprob is None for _, logprob in shown[: len(datum.prompt)])
    everything = trajectory.job.limits.train_on == TrainOn()
    for position, (_, logprob) in enumerate(shown[len(datum.prompt) :]):
        assert datum.sampled[position] == (logprob is not None)
        assert datum.logprobs[position] == (0.0 if logprob is None else logprob)
        assert datum.loss_mask[position] in range(datum.sampled[position] + 1)
        if everything or not trajectory.trains:
            assert datum.loss_mask[position] == (datum.sampled[position] if trajectory.trains else 0)
    assert datum.sampled[-1] == 1
    assert datum.trains == trajectory.trains


@given(trajectory=trajectories)
def test_what_trains_is_what_was_sampled(trajectory: Trajectory):
    check_l1(trajectory, to_data(trajectory, reward=0.5))


@given(trajectory=stripped_trajectories)
def test_stripped_reasoning_splits_a_trajectory_into_exact_data(trajectory: Trajectory):
    data = to_data(trajectory, reward=0.5)
    check_l1(trajectory, data)
    sampled = sum(len(turn.action_ids) for turn in trajectory.turns)
    assert sum(sum(datum.sampled) for datum in data) == sampled
    assert {datum.rollout_id for datum in data} <= {trajectory.job.key}


@given(trajectory=trajectories)
def test_turns_that_only_append_stay_one_datum(trajectory: Trajectory):
    assert len(to_data(trajectory, reward=0.0)) == any(turn.action_ids for turn in trajectory.turns)


@given(trajectory=trajectories.filter(lambda t: bool(to_data(t, reward=0)) and len(t.turns) > 1))
def test_a_mask_broken_by_one_is_seen(trajectory: Trajectory):
    (datum,) = to_data(trajectory, reward=0.0)
    for broken in (
        structs.replace(datum, sampled=(*datum.sampled[1:], 0)),
        structs.replace(datum, sampled=(1 - datum.sampled[0], *datum.sampled[1:])),
        structs.replace(datum, logprobs=(*datum.logprobs[1:], 1.0)),
        structs.replace(datum, response=(*datum.response, 7)),
        structs.replace(datum, loss_mask=(2, *datum.loss_mask[1:])),
    ):
        with pytest.raises(AssertionError):
            check_l1(trajectory, (broken,))


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
        assert (datum.rollout_id, datum.task_key) == (trajectory.job.key, trajectory.job.task.key)
        assert datum.reward == 0.25
