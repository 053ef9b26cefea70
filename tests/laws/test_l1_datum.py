"""L1, the pure half: a datum is the trajectory's own ids in order, and only the engine's ids are marked sampled."""

import pytest
from hypothesis import given
from msgspec import structs
from orl_core.datum import Datum, to_data
from orl_core.trajectory import Trajectory

from tests.strategies import trajectories


def check_l1(trajectory: Trajectory, data: tuple[Datum, ...]) -> None:
    """Law L1 for an unsplit trajectory, stated by position and without the code under test."""
    shown_and_sampled = [
        (token, logprob)
        for turn in trajectory.turns
        for token, logprob in (
            *((token, None) for token in turn.observation),
            *(
                (t, p)
                for generation in turn.generations
                for t, p in zip(generation.ids, generation.logprobs, strict=True)
            ),
        )
    ]
    while shown_and_sampled and shown_and_sampled[-1][1] is None:
        shown_and_sampled.pop()
    if not shown_and_sampled:
        assert data == ()
        return
    (datum,) = data
    assert (*datum.prompt, *datum.response) == tuple(token for token, _ in shown_and_sampled)
    assert datum.prompt == trajectory.turns[0].observation
    size = len(datum.response)
    assert size == len(datum.sampled) == len(datum.loss_mask) == len(datum.logprobs)
    for position, (_, logprob) in enumerate(shown_and_sampled[len(datum.prompt) :]):
        assert datum.sampled[position] == (logprob is not None)
        assert datum.logprobs[position] == (0.0 if logprob is None else logprob)
        assert datum.loss_mask[position] <= datum.sampled[position]
        if not trajectory.trains:
            assert datum.loss_mask[position] == 0
    assert datum.sampled[-1] == 1
    assert datum.trains == trajectory.trains


@given(trajectory=trajectories)
def test_what_trains_is_what_was_sampled(trajectory: Trajectory):
    check_l1(trajectory, to_data(trajectory, reward=0.5))


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


@given(trajectory=trajectories)
def test_a_datum_carries_what_names_it(trajectory: Trajectory):
    for datum in to_data(trajectory, reward=0.25):
        assert (datum.rollout_id, datum.task_key) == (trajectory.job.key, trajectory.job.task.key)
        assert datum.reward == 0.25
        assert len(datum.weight_versions) == sum(len(turn.generations) for turn in trajectory.turns)
