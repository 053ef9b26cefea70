"""The mask policy: which of the sampled ids train. What to_data keeps and splits is in tests/laws/test_l1_datum.py."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from msgspec import structs
from orl_core.datum import to_data
from orl_core.limits import Limits, TrainOn
from orl_core.messages import Action, FailureKind, Span, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn

from tests.kit.strategies import masked_trajectories

SPANS = (Span(part="reasoning", start=0, end=2), Span(part="calls", start=3, end=5))  # the id between them is text


def turn(spans: tuple[Span, ...] | None = SPANS, failure: FailureKind | None = None) -> Turn:
    generation = Generation(token_ids=(1, 2, 3, 4, 5), logprobs=(-0.5,) * 5, finish_reason="stop")
    results = (ToolResult(name="t", failure=failure), ToolResult(name="t", failure=FailureKind.UNKNOWN_TOOL))
    return Turn(observation=(9,), generations=(generation,), action=Action(), spans=spans, results=results)


def mask(policy: TrainOn, *turns: Turn) -> str:
    """The loss mask under a policy, one character for each id."""
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k", limits=Limits(train_on=policy))
    (datum,) = to_data(Trajectory(job=job, turns=turns, stop_reason=StopReason.FINISHED), reward=0.0)
    return "".join(map(str, datum.loss_mask))


def test_answers_without_ids_have_no_weight_version():
    """A full context ends a rollout with such an answer, and no weights have sampled it."""
    (first,) = turn().generations
    empty = Generation(token_ids=(), logprobs=(), finish_reason="length")
    first = structs.replace(first, weight_version="7")
    turns = (structs.replace(turn(), generations=(first,)), structs.replace(turn(), generations=(empty,)))
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k")
    (datum,) = to_data(Trajectory(job=job, turns=turns, stop_reason=StopReason.MAX_TOKENS), reward=0.0)
    assert datum.weight_versions == ("7",)


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        ((), "11111"),
        (("reasoning",), "00111"),
        (("calls",), "11100"),
        (("text",), "11011"),
        (("text", "reasoning"), "00011"),
    ],
)
def test_parts_that_are_switched_off_do_not_train(off: tuple[str, ...], expected: str):  # shows A36
    assert mask(TrainOn(**dict.fromkeys(off, False)), turn()) == expected


def test_failed_turn_trains_only_if_failed_turns_do():
    failed, half = turn(failure=FailureKind.INVALID_JSON), turn()
    assert mask(TrainOn(), failed, half) == "11111" + "0" + "11111"
    assert mask(TrainOn(failed_turns=False), failed, half) == "00000" + "0" + "11111"


def test_where_the_parts_are_not_known_all_train_or_none():
    assert mask(TrainOn(failed_turns=False), turn(spans=None)) == "11111"
    assert mask(TrainOn(reasoning=False), turn(spans=None)) == "00000"
    assert mask(TrainOn(reasoning=False), turn(spans=())) == "11111"


@given(trajectory=masked_trajectories)
def test_a_policy_only_ever_lowers_the_mask(trajectory: Trajectory):
    limits = structs.replace(trajectory.job.limits, train_on=TrainOn())
    freely = structs.replace(trajectory, job=structs.replace(trajectory.job, limits=limits))
    for datum, free in zip(to_data(trajectory, reward=0.0), to_data(freely, reward=0.0), strict=True):
        assert all(bit <= most for bit, most in zip(datum.loss_mask, free.loss_mask, strict=True))
        assert structs.replace(datum, loss_mask=()) == structs.replace(free, loss_mask=())


def test_non_finite_reward_leaves_other_rewards_of_the_turn():
    results = (ToolResult(name="t", reward=math.nan), ToolResult(name="t", reward=0.5))
    paid = structs.replace(turn(), results=results)
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k")
    (datum,) = to_data(Trajectory(job=job, turns=(paid,), stop_reason=StopReason.FINISHED), reward=0.0)
    assert datum.rewards == ((4, 0.5),)
