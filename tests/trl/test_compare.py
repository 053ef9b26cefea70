"""Rows beyond one a rollout in the embedded trainer: refused, or paid by comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from typing import TypeVar

from orl_core.config import GroupRewardConfig
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.group_scores import compare
from orl_rollout.runtime.runtime import RolloutRequest
from orl_testing import ScriptedEngine
from orl_trl.rollouts import Rollouts, TrainingPlan

from tests.kit.trajectories import FakeJudge, ended

T = TypeVar("T")


class Unasked:
    """An engine that nobody asks."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def client(self) -> AbstractAsyncContextManager[Engine]:
        return nullcontext(ScriptedEngine([]))

    def batch(self, version: str) -> AbstractContextManager[None]:
        return nullcontext()

    def serve(self, until: Future[T]) -> T:
        return until.result(10)


class Player:
    """Plays a task by looking its outcome up."""

    def __init__(self, outcomes: dict[str, Outcome]) -> None:
        self.outcomes = outcomes

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Player]:
        yield self

    async def play(self, request: RolloutRequest, _: object) -> Outcome:
        await asyncio.sleep(0)
        return self.outcomes[request.task.key]


def test_a_batch_is_paid_by_comparison():
    outcomes = {outcome.trajectory.job.task.key: outcome for outcome in (ended("a"), ended("b", number=2, reward=0.5))}
    config = GroupRewardConfig(mode="blend", weight=2.0)

    async def compared(played: Sequence[Outcome]) -> tuple[list[Outcome], dict[str, float]]:
        return await compare(played, FakeJudge((3.0,)), config)

    plan = TrainingPlan(
        tasks={key: outcome.trajectory.job.task for key, outcome in outcomes.items()},
        held_out=(),
        eval_samples=1,
        concurrency=2,
        sampling={},
        eval_sampling={},
        compare=compared,
    )
    logged: dict[str, float] = {}
    with Rollouts(plan, Unasked(), Player(outcomes).open) as rollouts:
        columns = rollouts(list(outcomes), None)
        assert rollouts.reward(reward=columns["reward"], log_metric=logged.__setitem__) == [7.0, 6.5]
    assert logged["group_reward/failed"] == 0.0
    assert logged["gallery/Compared/reward"] == 6.75
