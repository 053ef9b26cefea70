"""L7, a rollout counts once: loss and gradient are the same whether it comes as one row or as several.

slime and miles take the mean over the trained ids of a rollout, all its rows together (`rollout_mask_sums`), times the
advantage that our hook makes. The gradient is linear in the weights of the ids, so equal weights are equal gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_cluster.hooks.samples import split
from orl_core.datum import Datum, to_data
from orl_core.messages import Action
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_rollout.results.outcome import Outcome
from orl_slime.hooks import post_process

from tests.slime.miniature import Sample, arguments

JOB = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k")
Weights = dict[tuple[int, float], float]  # by rollout and logprob, which is another one for each id


def trajectory_of(shape: Sequence[tuple[int, int]]) -> Trajectory:
    """A turn for each pair: the turn that it continues, and how many ids it samples, each with another logprob."""
    turns: list[Turn] = []
    for index, (parent, size) in enumerate(shape):
        logprobs = tuple(-1.0 - 10 * index - at for at in range(size))
        generation = Generation(token_ids=(7,) * size, logprobs=logprobs, finish_reason="length")
        continues = min(parent, index - 1)
        turns.append(Turn(observation=(1,), generations=(generation,), action=Action(), continues=continues))
    return Trajectory(job=JOB, turns=tuple(turns), stop_reason=StopReason.FINISHED)


def merged(data: Sequence[Datum]) -> tuple[Datum, ...]:
    """All rows of a rollout as one."""
    if not data:
        return ()
    columns: dict[str, Any] = {
        name: tuple(one for datum in data for one in getattr(datum, name))
        for name in ("response", "sampled", "loss_mask", "logprobs", "generations")
    }
    return (structs.replace(data[0], **columns, rewards=(), ends=()),)


def outcome_of(trajectory: Trajectory, reward: float, data: tuple[Datum, ...]) -> Outcome:
    return Outcome(trajectory=trajectory, reward=reward, success=False, datums=data)


def samples_of(outcomes: Sequence[Outcome], size: int) -> list[Sample]:
    """The samples of a batch of groups of `size`, in the trainer's order."""
    made: list[Sample] = []
    for index, outcome in enumerate(outcomes):
        made += split(Sample(index=index, group_index=index // size), outcome, text_of=lambda _: "")
    return made


def weights_of(samples: list[Sample], denominator_of: Callable[[Sample], Any]) -> Weights:
    """The weight of each trained id in the loss: its advantage over what its mean is taken over."""
    _, advantages = post_process(arguments(), samples)
    sums: Counter[Any] = Counter()
    for sample in samples:
        sums[denominator_of(sample)] += sum(sample.loss_mask or ())
    weights: Weights = {}
    for sample, advantage in zip(samples, advantages, strict=True):
        for mask, logprob in zip(sample.loss_mask or (), sample.rollout_log_probs or (), strict=True):
            if mask and not sample.remove_sample:
                assert (sample.index, logprob) not in weights
                weights[sample.index, logprob] = advantage / sums[denominator_of(sample)]
    return weights


def by_rollout(sample: Sample) -> int | None:
    return sample.rollout_id


shapes = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 4)), max_size=5)
batches = st.lists(st.tuples(shapes, st.sampled_from([0.0, 0.5, 1.0])), min_size=4, max_size=4)


@given(batch=batches)
def test_rollout_counts_once_however_many_rows_it_has(batch: list[tuple[list[tuple[int, int]], float]]) -> None:
    played = [(trajectory_of(shape), reward) for shape, reward in batch]
    several = [outcome_of(one, reward, to_data(one, reward=reward)) for one, reward in played]
    single = [structs.replace(outcome, datums=merged(outcome.datums)) for outcome in several]
    ours = weights_of(samples_of(several, 2), by_rollout)
    assert ours == pytest.approx(weights_of(samples_of(single, 2), by_rollout), abs=1e-6)
    assert len(ours) == sum(len(turn.action_ids) for one, _ in played for turn in one.turns)


def test_negative_control_mean_of_each_row_counts_twice() -> None:
    data = tuple(
        Datum(
            task_key="t",
            rollout_id="k",
            prompt=(1,),
            response=(2,) * size,
            sampled=(1,) * size,
            loss_mask=(1,) * size,
            logprobs=tuple(-float(10 * size + at) for at in range(size)),
        )
        for size in (1, 3)
    )
    outcomes = [outcome_of(trajectory_of([]), reward, data) for reward in (0.0, 1.0)]
    single = [structs.replace(outcome, datums=merged(data)) for outcome in outcomes]
    by_row = weights_of(samples_of(outcomes, 2), id)
    assert by_row != pytest.approx(weights_of(samples_of(single, 2), id), abs=1e-6)
