"""`orl rollout` keeps the numbers of a rollout and lets its ids and texts go."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_core.config import EnvironmentConfig, decode_config
from orl_core.messages import Action
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_launcher.commands.rollout import Played, RolloutPlan, play_all
from orl_rollout.results.outcome import Outcome, outcome_of
from orl_rollout.runtime.runtime import RolloutRequest

from tests.kit.secrets import NO_SECRETS

IDS = 28_000
ROLLOUTS = 20


class Player:
    """A runtime whose rollouts are long, and end at once."""

    async def play(self, request: RolloutRequest, _: object) -> Outcome:
        generation = Generation(token_ids=tuple(range(IDS)), logprobs=(-0.5,) * IDS, finish_reason="stop")
        turn = Turn(observation=(1, 2), generations=(generation,), action=Action(text="x" * IDS))
        job = RolloutSpec(task=request.task, rollout_id=request.rollout_id)
        ended = Trajectory(job=job, turns=(turn,), stop_reason=StopReason.FINISHED)
        return outcome_of(ended, EnvironmentConfig(), NO_SECRETS)


@pytest.mark.slow
async def test_rollouts_leave_numbers_alone() -> None:
    config = decode_config({"environments": {"A/B": {}}}, "test")
    task = Task(env_name="A/B", deployment_name="A/B", task_spec={"id": 1})
    plan = RolloutPlan(config=config, original=config, tasks=(task,), samples=ROLLOUTS, concurrency=2, folder=Path())
    runtime: Any = Player()
    engine: Any = None
    shown: list[tuple[int, int, str]] = []
    played = await play_all(plan, runtime, engine, lambda *words: shown.append(words))
    assert shown[-1][:2] == (ROLLOUTS, ROLLOUTS)
    assert len(played) == ROLLOUTS
    assert all(isinstance(one, Played) and one.stats.action_tokens == IDS for one in played)
    assert len(msgspec.json.encode(played)) < 1_000 * ROLLOUTS
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is Trajectory and each.job.rollout_id.startswith(task.key)]
    assert not kept
