"""Group rewards on a real OpenReward server, and by fakes: what is compared, how it is paid, what a failure costs."""

from __future__ import annotations

import time

import pytest
from msgspec import structs
from orl_core.config import GroupRewardConfig
from orl_core.errors import SessionError
from orl_core.messages import (
    Action,
    FailureKind,
    Message,
    ParseFailure,
    TextBlock,
    ToolCall,
    ToolResult,
    text_message,
    text_of,
)
from orl_core.task import Task
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.wire import candidate_of
from orl_rollout.runtime.group_scores import Group, candidate, compare, score_groups
from orl_testing import environments as envs

from tests.kit.episodes import config_of, task_of
from tests.kit.trajectories import FakeJudge, ended, turn

BLEND = GroupRewardConfig(mode="blend", weight=0.5, timeout=5.0)


def test_conversation_includes_broken_calls_and_answers():
    broken = ParseFailure(kind=FailureKind.INVALID_JSON, message="no", text="{oops")
    call = ToolCall(name="look")
    results = (
        ToolResult(name="error", content=(TextBlock(text="Error: no"),), failure=FailureKind.INVALID_JSON),
        ToolResult(name="look", content=(TextBlock(text="a door"),)),
        ToolResult(name="error", content=(TextBlock(text="too many"),), failure=FailureKind.TOO_MANY_CALLS),
    )
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id="k")
    opening = (text_message("system", "Be brief."), text_message("user", "Go."))
    action = Action(text="So:", reasoning="Hm.", calls=(broken, call))
    played = Trajectory(job=job, messages=opening, turns=(turn(action, *results),), stop_reason=StopReason.FINISHED)
    said = candidate(played)
    assert said[:2] == opening
    assert said[2] == Message(role="assistant", content=(TextBlock(text="So:\n{oops"),), reasoning="Hm.", calls=(call,))
    assert [(message.role, text_of(message.content)) for message in said[3:]] == [
        ("user", "Error: no"),
        ("tool", "a door"),
        ("user", "too many"),
    ]


def test_a_server_that_takes_text_only_is_shown_what_was_said():
    shown = candidate_of(candidate(ended("Bob did it.").trajectory), calls=False)
    assert [(message["role"], [block["text"] for block in message["blocks"]]) for message in shown["messages"]] == [
        ("user", ["Act."]),
        ("assistant", ["So."]),
        ("user", ["Bob did it."]),
        ("assistant", ["Bob did it."]),
    ]


async def test_each_group_is_compared_on_one_fresh_session(gallery: envs.Served):
    envs.Compared.seen.clear()
    async with OpenRewardClient(config_of("Compared", gallery.url)) as client:
        outcomes = [ended("a"), ended("four", number=4), ended("bbb"), ended("failed", stop=StopReason.ERROR)]
        sessions = sum(path.endswith("/create") for path, _ in gallery.requests)
        compared, metrics = await compare(outcomes, client, BLEND)
        assert sum(path.endswith("/create") for path, _ in gallery.requests) - sessions == 2
    assert [outcome.reward for outcome in compared] == [1.5, 3.0, 2.5, 0.0]
    assert [datum.reward for outcome in compared for datum in outcome.datums] == [1.5, 3.0, 2.5, 0.0]
    assert [outcome.trajectory for outcome in compared] == [outcome.trajectory for outcome in outcomes]
    assert metrics == {"group_reward/groups": 2.0, "group_reward/failed": 0.0}
    first = next(group for group in envs.Compared.seen if len(group) == 2)[0]
    assert [message.role for message in first.messages] == ["user", "assistant", "user", "assistant"]
    assert [block.type for block in first.messages[1].blocks] == ["reasoning", "text", "tool_call"]
    called, told = first.messages[1].blocks[2], first.messages[2].blocks[0]
    assert (called.type, told.type) == ("tool_call", "tool_result")
    assert called.id == told.tool_call_id  # type: ignore[union-attr]


@pytest.mark.slow
async def test_unscored_group_keeps_its_rewards_and_is_counted(gallery: envs.Served):
    async with OpenRewardClient(config_of("Compared", gallery.url)) as client:
        outcomes = [ended("a", number=2), ended("slow", number=3), ended("four", number=4)]
        started = time.monotonic()
        compared, metrics = await compare(outcomes, client, structs.replace(BLEND, mode="only", timeout=2.0))
        assert time.monotonic() - started < 20
    assert [outcome.reward for outcome in compared] == [1.0, 1.0, 4.0]
    assert metrics == {"group_reward/groups": 3.0, "group_reward/failed": pytest.approx(2 / 3)}


async def test_an_environment_that_scores_no_groups_says_so(gallery: envs.Served, caplog: pytest.LogCaptureFixture):
    async with OpenRewardClient(config_of("Echo", gallery.url)) as client:
        group = Group(task=task_of("Echo"), candidates=((text_message("assistant", "x"),),))
        assert await score_groups([group], client, seconds=5.0) == [None]
    assert "gallery/Echo scores no groups" in caplog.text


@pytest.mark.parametrize("fault", [SessionError("gone"), OSError("reset"), KeyError("scores")])
async def test_whatever_a_judge_does_wrong_the_group_is_left_as_it_is(fault: Exception):
    judge = FakeJudge(fault)
    compared, metrics = await compare([ended("a"), ended("b", reward=3.0)], judge, BLEND)
    assert [outcome.reward for outcome in compared] == [1.0, 3.0]
    assert (metrics["group_reward/failed"], judge.closed) == (1.0, 1)


async def test_no_groups_no_judge():
    assert await compare([], FakeJudge(OSError()), BLEND) == (
        [],
        {"group_reward/groups": 0.0, "group_reward/failed": 0.0},
    )
