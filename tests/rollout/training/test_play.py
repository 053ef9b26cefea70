"""Batches of rollouts: their order, ids and seeds."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec import structs
from orl_core.errors import RunAborted
from orl_core.task import Task
from orl_rollout.logs import work
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.play import Batch, play

from tests.kit.paid_turns import outcome

TASKS = [Task(env_name="A/B", deployment_name="A/B", index=index) for index in range(3)]
ENGINE = cast("Engine", None)  # which the fake does not ask
MEASURED = Batch(tasks=TASKS, samples=2, name="eval/0", seed=7, evaluation=True)


class Late:
    """A player whose first rollouts end last."""

    def __init__(self, fails_at: int = -1) -> None:
        self.requests: list[RolloutRequest] = []
        self.running = self.most = 0
        self.said: list[str] = []
        self._fails_at = fails_at

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        self.requests.append(request)
        self.said.append(work())
        number, self.running = len(self.requests), self.running + 1
        self.most = max(self.most, self.running)
        for _ in range(20 - number):
            await asyncio.sleep(0)
        self.running -= 1
        if number == self._fails_at:
            raise RunAborted("no more")
        return outcome([([1], [number], 0.0)])


def seeds(batch: Batch) -> list[Any]:
    return [request.sampling["sampling_seed"] for request in batch.requests()]


async def test_outcomes_are_in_the_order_of_the_batch() -> None:
    late, ended = Late(), list[int]()

    def keep(one: Outcome) -> int:
        ended.append(one.datums[0].response[0])
        return ended[-1]

    assert await play(MEASURED, late, ENGINE, keep) == [1, 2, 3, 4, 5, 6]
    assert ended == [6, 5, 4, 3, 2, 1]
    assert [request.rollout_id for request in late.requests] == [f"eval/0/{row}" for row in range(6)]


async def test_no_more_play_at_once_than_may_and_none_begins_once_stopped() -> None:
    late = Late()
    batch = structs.replace(MEASURED, concurrency=2)
    played = await play(batch, late, ENGINE, lambda one: one, stopped=lambda: len(late.requests) >= 3)
    assert (len(played), late.most) == (3, 2)
    assert (late.said[0], late.said[-1], work()) == ("evaluating 0 of 6", "evaluating 1 of 6", "")


async def test_fault_of_a_player_ends_the_batch() -> None:
    late = Late(fails_at=2)
    with pytest.raises(RunAborted):
        await play(MEASURED, late, ENGINE, lambda one: one)


def test_measurements_use_common_random_numbers() -> None:
    """Whatever its step and its place, a sample of a task has one seed; `orl rollout` has the same."""
    later = structs.replace(MEASURED, name="eval/30", step=30, tasks=TASKS[::-1])
    alone = structs.replace(MEASURED, name="")
    assert len(set(seeds(MEASURED))) == 6
    assert seeds(later) == [*seeds(MEASURED)[4:], *seeds(MEASURED)[2:4], *seeds(MEASURED)[:2]]
    assert seeds(alone) == seeds(MEASURED)
    assert [request.rollout_id for request in alone.requests()][:2] == [f"{TASKS[0].key}/0", f"{TASKS[0].key}/1"]


def test_training_samples_anew_in_each_step() -> None:
    first, second = (structs.replace(MEASURED, name=f"train/{step}", step=step, evaluation=False) for step in (1, 2))
    assert len({*seeds(first), *seeds(second)}) == 12
