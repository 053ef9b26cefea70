from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.config import EnvironmentConfig
from orl_core.errors import RunAborted, SessionError
from orl_core.trajectory import StopReason, Trajectory
from orl_rollout.results.outcome import Outcome, outcome_of
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.run_plan.training_plan import TrainingPlan
from orl_trl.training.rollouts import Rollouts, columns_of
from transformers import Qwen3ForCausalLM

from tests.kit.secrets import NO_SECRETS
from tests.kit.strategies import trajectories
from tests.trl.fakes import End, Player, make_run, tasks

T = TypeVar("T")


def plan(concurrency: int = 8) -> TrainingPlan:
    sampling = {"temperature": 1.0}
    by_key = {task.key: task for task in tasks(4)}
    return TrainingPlan(
        tasks=by_key,
        held_out=tuple(tasks(3, "test")),
        eval_samples=2,
        concurrency=concurrency,
        sampling=sampling,
        eval_sampling={"temperature": 0.0},
    )


def player(tmp_path: Path, script: dict[int, End]) -> Player:
    return Player(make_run(tmp_path, "m").config, lambda key: script.get(int(key.rsplit("/", 1)[1]), 0.0))


@given(batch=st.lists(trajectories, max_size=5))
def test_a_row_is_a_datum_as_it_is_and_trl_can_hold_it(batch: list[Trajectory]):
    outcomes = [outcome_of(trajectory, EnvironmentConfig(), NO_SECRETS) for trajectory in batch]
    columns = columns_of(outcomes)
    assert {len(column) for column in columns.values()} == {len(batch)}
    for outcome, *row in zip(outcomes, *columns.values(), strict=True):
        prompt, completion, logprobs, mask, reward = row
        assert prompt
        assert len(completion) == len(logprobs) == len(mask) >= 1
        assert (reward is not None) == outcome.trajectory.trainable
        assert any(mask) == outcome.trajectory.trainable
        assert reward in (None, outcome.reward)
        for datum in outcome.datums:
            whole = (datum.prompt, datum.response, datum.logprobs, datum.loss_mask)
            assert tuple(map(tuple, row[:4])) == (
                ((0,), (0,), (0.0,), (0,)) if outcome.trajectory.contains_secret else whole
            )


def test_rows_keep_prompt_order_and_player_closes_after(model: Qwen3ForCausalLM, tmp_path: Path):
    played = player(tmp_path, {0: 0.5, 1: StopReason.ERROR, 2: StopReason.TIMEOUT, 5: 2.0})
    keys = [key for key in plan().tasks for _ in range(2)]
    run = make_run(tmp_path, "m")
    with Rollouts(plan(concurrency=3), InProcessEngine(model), lambda: played.open(run, "m")) as rollouts:
        columns = rollouts(keys, None)
        assert columns["reward"] == [0.5, None, None, 0.0, 0.0, 2.0, 0.0, 0.0]
        assert [ids[0] for ids in columns["prompt_ids"]] == [10, 0, 11, 11, 12, 12, 13, 13]
        assert [len(ids) for ids in columns["completion_ids"]] == [7, 1, 7, 7, 7, 7, 7, 7]
        assert columns["env_mask"][:4] == [[1, 1, 1, 0, 1, 1, 1], [0], [0] * 7, [1, 1, 1, 0, 1, 1, 1]]
        assert {g.weight_version for g in rollouts.outcomes[0].trajectory.turns[0].generations} == {"0"}
        evaluated = rollouts.evaluate()
        assert [outcome.trajectory.job.task.index for outcome in evaluated] == [0, 0, 1, 1, 2, 2]
        assert all(outcome.trajectory.job.evaluation for outcome in evaluated)
        assert evaluated[0].trajectory.job.sampling["temperature"] == 0.0
        assert evaluated[2].datums[0].response == evaluated[3].datums[0].response
    assert len(set(played.keys)) == 14
    assert (played.opened, played.closed) == (1, 1)
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]


def test_breaker_ends_batch_and_cancels_siblings(model: Qwen3ForCausalLM, tmp_path: Path):
    played = player(tmp_path, {3: RunAborted("enough")})
    run = make_run(tmp_path, "m")
    rollouts = Rollouts(plan(), InProcessEngine(model), lambda: played.open(run, "m"))
    with rollouts, pytest.raises(RunAborted, match="enough"):
        rollouts(list(plan().tasks), None)
    assert played.cancelled == 3
    assert played.closed == 1


class Interrupted(InProcessEngine):
    """Ctrl-C comes while it serves."""

    def serve(self, until: Future[T]) -> T:
        for waiting in self._gather():
            assert not waiting.answer.done()
        raise KeyboardInterrupt


def test_interrupt_cancels_rollouts_before_the_player_closes(model: Qwen3ForCausalLM, tmp_path: Path):
    played = player(tmp_path, {})
    run = make_run(tmp_path, "m")
    with pytest.raises(KeyboardInterrupt), Rollouts(plan(), Interrupted(model), lambda: played.open(run, "m")) as rows:
        rows(list(plan().tasks), None)
    assert (played.cancelled, played.running, played.closed) == (4, 0, 1)
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("opens", [True, False])
def test_player_that_fails_leaves_no_thread_behind(model: Qwen3ForCausalLM, tmp_path: Path, opens: bool):
    @asynccontextmanager
    async def broken():
        if opens:
            yield player(tmp_path, {})
        raise SessionError("no way")

    with pytest.raises(SessionError, match="no way"), Rollouts(plan(), InProcessEngine(model), broken):
        pass
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]


def test_comparison_pays_the_batch(model: Qwen3ForCausalLM, tmp_path: Path):
    async def compare(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], dict[str, float]]:
        return [structs.replace(outcome, reward=7.0) for outcome in outcomes], {"group_reward/failed": 0.0}

    played, run, logged = player(tmp_path, {}), make_run(tmp_path, "m"), dict[str, float]()
    compared = structs.replace(plan(), compare=compare)
    with Rollouts(compared, InProcessEngine(model), lambda: played.open(run, "m")) as rollouts:
        columns = rollouts(list(plan().tasks), None)
    assert rollouts.reward(reward=columns["reward"], log_metric=logged.__setitem__) == [7.0] * 4
    assert (logged["group_reward/failed"], logged["toy/Env/reward"]) == (0.0, 7.0)


def test_members_of_a_group_differ_and_a_run_repeats(model: Qwen3ForCausalLM, tmp_path: Path):
    run = make_run(tmp_path, "m")
    keys = [next(iter(plan().tasks))] * 4
    seen: list[list[list[int]]] = []
    for _ in range(2):
        played = player(tmp_path, {})
        with Rollouts(plan(), InProcessEngine(model), lambda one=played: one.open(run, "m")) as rollouts:
            seen += [rollouts(keys, None)["completion_ids"] for _ in range(2)]
    first, second, *again = seen
    assert again == [first, second]
    assert len({tuple(ids) for ids in (*first, *second)}) == 8
