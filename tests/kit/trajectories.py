"""Trajectories that are written out, with what pays for them: rewards, environments, a judge of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orl_core.config import EnvironmentConfig, decode_config
from orl_core.messages import Action, Message, TextBlock, ToolCall, ToolResult, text_message
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_rollout.loop.session import Opening
from orl_rollout.results.outcome import Outcome, outcome_of

from tests.kit.episodes import task_of
from tests.kit.secrets import NO_SECRETS


def played(rewards: list[float | None], stop: StopReason = StopReason.FINISHED) -> Trajectory:
    """Return a trajectory of one turn for each reward."""
    turns = tuple(
        Turn(observation=(1,), generations=(), action=Action(), results=(ToolResult(name="t", reward=reward),))
        for reward in rewards
    )
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k")
    return Trajectory(job=job, turns=turns, stop_reason=stop)


def environment(**fields: object) -> EnvironmentConfig:
    """Return the configuration of an environment with these fields."""
    return decode_config({"environments": {"A/B": fields}}, "test").environments["A/B"]


def turn(action: Action, *results: ToolResult) -> Turn:
    """Return a turn of one sampled token, read as `action`."""
    return Turn(
        observation=(1,),
        generations=(Generation(token_ids=(2,), logprobs=(-0.5,), finish_reason="stop"),),
        action=action,
        results=results,
    )


def ended(text: str, *, number: int = 1, reward: float = 1.0, stop: StopReason = StopReason.FINISHED) -> Outcome:
    """Return a rollout of a task of `Compared` that thought, called, and was told `text`."""
    call = ToolCall(name="act", arguments={"n": number})
    told = ToolResult(name="act", content=(TextBlock(text=text),), reward=reward)
    played = Trajectory(
        job=RolloutSpec(task=task_of("Compared", number), rollout_id=text),
        messages=(text_message("user", "Act."),),
        turns=(turn(Action(text="So.", reasoning="Hm.", calls=(call,)), told), turn(Action(text=text))),
        stop_reason=stop,
    )
    return outcome_of(played, environment(), NO_SECRETS)


class FakeJudge:
    """Opens sessions that score groups by a script, or raise it."""

    def __init__(self, script: Any) -> None:
        self.script = script
        self.closed = 0

    def session(self, task: Task) -> FakeJudge:
        return self

    async def open(self, task: Task) -> Opening:
        return Opening(messages=(), tools=())

    async def score_group(self, candidates: Sequence[Sequence[Message]]) -> tuple[float, ...]:
        if isinstance(self.script, Exception):
            raise self.script
        return self.script

    async def close(self) -> None:
        self.closed += 1
