"""The runtime: what a configuration asks for and this model or this process cannot do is refused before a rollout."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError, RunAborted
from orl_core.messages import TextBlock, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, StopReason, Trajectory
from orl_rollout.loop.session import Session
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit.runtimes import runtime_of
from tests.kit.tokenizers import renderer_of, tokenizer

TASK = Task(env_name="A/B", deployment_name="A/B")
CALL = tuple(tokenizer().encode_joint('<tool_call>\n{"name": "act", "arguments": {}}\n</tool_call><|im_end|>'))


class Sessions:
    """An environment whose every episode ends after one call."""

    def session(self, task: Task) -> Session:
        said = (TextBlock(text=str(task.task_spec.get("says", "")) * task.task_spec.get("times", 1)),)
        return ScriptedSession([ToolResult(name="act", content=said, reward=0.25, finished=True)])


def config_of(**fields: Any) -> RunConfig:
    return decode_config({"environments": {"A/B": {}}, **fields}, "test")


def runtime(config: RunConfig, model: str = "qwen3") -> Runtime:
    breaker = CircuitBreaker(max_error_rate=0.5, group_size=1)
    return runtime_of(config, Sessions(), renderer=renderer_of(model), breaker=breaker)


def engine(rollouts: int) -> ScriptedEngine:
    return ScriptedEngine([Generation(token_ids=CALL, logprobs=(-0.5,) * len(CALL), finish_reason="stop")] * rollouts)


def on_a_thread(trajectory: Trajectory) -> float:
    return 0.5 + len(trajectory.turns)


JUDGING, RENDERED = threading.Event(), threading.Event()


def slow(_: Trajectory) -> float:
    JUDGING.set()
    return float(RENDERED.wait(20))


def broken(_: Trajectory) -> float:
    raise RuntimeError("no judge")


class Unrewarded:
    """Environments that end each episode without a reward."""

    def session(self, task: Task) -> Session:
        return ScriptedSession([ToolResult(name="act", finished=True)])


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ({}, 2),
        ({"group_reward": {"mode": "blend"}}, 0),  # the comparison rewards them
        ({"reward": "tests.rollout.runtime.test_runtime:on_a_thread"}, 0),
    ],
)
async def test_missing_reward_is_warned_once_per_environment(
    fields: dict[str, Any], warnings: int, caplog: pytest.LogCaptureFixture
):
    config = decode_config({"environments": {"A/B": {}, "C/D": {}}, **fields}, "test")
    playing = runtime_of(config, Unrewarded())
    tasks = [TASK, TASK, structs.replace(TASK, env_name="C/D")]
    outcomes = [await playing.play(RolloutRequest(task=task, rollout_id="k"), engine(1)) for task in tasks]
    assert [outcome.unrewarded for outcome in outcomes] == [bool(warnings)] * 3
    told = [record.getMessage() for record in caplog.records if "none of its results carried a reward" in record.msg]
    assert [message.partition(":")[0] for message in told] == ["A/B", "C/D"][:warnings]


async def test_slow_reward_functions_leave_the_threads_of_rollouts_free():
    """Long results are rendered on the threads of the event loop, under the deadline of their rollout."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    playing = runtime(config_of(reward="tests.rollout.runtime.test_runtime:slow"))
    async with asyncio.TaskGroup() as group:
        judged = group.create_task(playing.play(RolloutRequest(task=TASK, rollout_id="k"), engine(1)))
        await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), JUDGING.wait, 20)
        await asyncio.to_thread(RENDERED.set)
    assert judged.result().reward == 1.0


async def test_broken_reward_function_is_an_error_and_ends_the_run():
    playing = runtime(config_of(reward="tests.rollout.runtime.test_runtime:broken"))
    model = engine(200)
    outcome = await playing.play(RolloutRequest(task=TASK, rollout_id="k"), model)
    assert outcome.trajectory.stop_reason is StopReason.ERROR
    for number in range(62):
        await playing.play(RolloutRequest(task=TASK, rollout_id=str(number)), model)
    with pytest.raises(RunAborted, match="no judge"):
        await playing.play(RolloutRequest(task=TASK, rollout_id="last"), model)


async def test_a_rollout_that_echoes_a_secret_does_not_train():
    playing = runtime(config_of(secrets={"pass": "correct horse"}))
    for says, leaked in (("a horse", False), ("a correct horse", True)):
        task = structs.replace(TASK, task_spec={"says": says})
        outcome = await playing.play(RolloutRequest(task=task, rollout_id="k"), engine(1))
        assert (outcome.trajectory.stop_reason, outcome.trajectory.contains_secret) == (StopReason.FINISHED, leaked)
        assert [(datum.trainable, any(datum.loss_mask)) for datum in outcome.datums] == [] if leaked else [(True, True)]


async def test_long_result_of_few_ids_is_searched_off_the_event_loop() -> None:
    """A profile function of this thread sees every call that runs on it."""
    playing = runtime(config_of(secrets={"pass": "correct horse"}))
    task = structs.replace(TASK, task_spec={"says": "a horse ", "times": 100_000})
    seen: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.add(frame.f_code.co_qualname) if event == "call" else None)
    try:
        outcome = await playing.play(RolloutRequest(task=task, rollout_id="k"), engine(1))
    finally:
        sys.setprofile(before)
    assert "Judging.judge" in seen
    assert "Scrubber.find_in" not in seen
    assert not outcome.trajectory.contains_secret


def test_impossible_settings_are_refused_at_the_start():
    runtime(config_of(thinking="strip"))
    runtime(config_of(rollout={"train_on": {"reasoning": False}}), "qwen2_5")
    with pytest.raises(ConfigError, match="`thinking: strip` needs"):
        runtime(config_of(thinking="strip"), "qwen2_5")
    with pytest.raises(ConfigError, match="`score` from module `no_such_module`"):
        runtime(config_of(reward="no_such_module:score"))
