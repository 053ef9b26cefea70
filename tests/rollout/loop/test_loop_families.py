"""The loop keeps within what a model's template can express, as the certificate says."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from orl_core.datum import to_data
from orl_core.limits import Limits
from orl_core.messages import FailureKind, Message, TextBlock, ToolCall, ToolResult, ToolSpec, text_message
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopDetail, StopReason, Trajectory
from orl_rollout.loop.loop import rollout
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit.families import renderer, tokenizer

TASK = Task(env_name="A/B", deployment_name="A/B", task_spec={"id": 1})
RESULT = ToolResult(name="act", content=(TextBlock(text="ok"),))
TEXT = {"type": "object", "properties": {"x": {"type": "string"}}}
GLM_CALL = "\n<tool_call>act\n<arg_key>x</arg_key>\n<arg_value>go</arg_value>\n</tool_call>"


def say(name: str, text: str) -> Generation:
    ids = tokenizer(name).encode_joint(text)
    return Generation(token_ids=tuple(ids), logprobs=(-0.5,) * len(ids), finish_reason="stop")


async def play(
    name: str, said: list[str], results: int = 0, **limits: Any
) -> tuple[Trajectory, ScriptedEngine, ScriptedSession]:
    engine = ScriptedEngine([say(name, text) for text in said])
    session = ScriptedSession([RESULT] * results, tools=(ToolSpec(name="act"),))
    job = RolloutSpec(task=TASK, rollout_id="k", limits=Limits(**limits))
    return await rollout(job, session=session, renderer=renderer(name), engine=engine), engine, session


def kimi(*numbers: int) -> str:
    """An action of calls with these numbers."""
    calls = "".join(
        f"<|tool_call_begin|>functions.act:{number}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        for number in numbers
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|><|im_end|>"


@pytest.mark.parametrize(
    ("said", "ids"),
    [
        ([kimi(0), kimi(0), kimi(1)], [[0], [0]]),
        (["<think>Now." + kimi(0)[:-10] + "</think>" + kimi(1), kimi(2)], [[1]]),
        (["<think>I call." + kimi(0), kimi(1), kimi(2)], [[0], [1]]),
        ([kimi(*range(34)), kimi(34), kimi(35)], [[*range(33)], [34]]),
    ],
    ids=("counts from 0 again", "mentioned in reasoning", "in open reasoning", "more calls than are made"),
)
async def test_result_has_the_id_that_the_model_counted(said: list[str], ids: list[list[int]]):
    """A call that is not made shifts no other: of 34 calls 32 are made, and the result of the next says so."""
    _, engine, _ = await play("kimi_k2", said, results=sum(map(len, ids)), max_turns=len(said))
    prompts = [tokenizer("kimi_k2").decode(request.token_ids) for request in engine.requests]
    news = [later.removeprefix(earlier) for earlier, later in pairwise(prompts)]
    assert [[int(number) for number in re.findall(r"Return of functions.act:(\d+)\n", new)] for new in news] == ids


async def test_call_ids_of_an_opening_are_numbers():
    """Kimi repeats the id of a call in its result. The opening may hold calls, as examples."""
    example = (
        text_message("user", "Play."),
        Message(role="assistant", calls=(ToolCall(name="act", arguments={}),)),
        text_message("tool", "ok", name="act"),
        text_message("user", "Again."),
    )
    engine = ScriptedEngine([say("kimi_k2", kimi(number)) for number in (1, 2, 3)])
    session = ScriptedSession([RESULT] * 3, messages=example, tools=(ToolSpec(name="act"),))
    job = RolloutSpec(task=TASK, rollout_id="k", limits=Limits(max_turns=3))
    await rollout(job, session=session, renderer=renderer("kimi_k2"), engine=engine)
    shown = tokenizer("kimi_k2").decode(engine.requests[2].token_ids)
    assert [shown.count(f"Return of functions.act:{number}") for number in (0, 1, 2)] == [1, 1, 1]


async def test_no_nudge_where_a_user_message_cannot_follow():
    trajectory, engine, _ = await play("mistral_nemo", ["Hm.</s>"])
    assert (trajectory.stop_detail, len(engine.requests)) == (StopDetail.NO_CALL, 1)
    assert trajectory.trainable
    trajectory, engine, _ = await play("ministral_3", ["Hm.</s>", "Hm.</s>"], max_nudges=1)
    assert (trajectory.stop_reason, len(engine.requests)) == (StopReason.MAX_TURNS, 2)


@pytest.mark.published
async def test_excess_calls_get_one_failure_and_none_runs():
    one = " to=functions.act<|channel|>commentary json<|message|>{}<|call|>"
    two = one.removesuffix("<|call|>") + "<|end|><|start|>assistant" + one
    trajectory, engine, session = await play("gpt_oss", [two, one], results=1, max_turns=2)
    assert [len(turn.action.calls) for turn in trajectory.turns] == [2, 1]
    assert [result.failure for result in trajectory.turns[0].results] == [FailureKind.TOO_MANY_CALLS]
    assert len(session.calls) == 1
    shown = tokenizer("gpt_oss").decode(engine.requests[1].token_ids)
    assert "2 calls at once, and none was made; make at most 1 in one turn" in shown


@pytest.mark.published
async def test_an_action_that_has_opened_another_role_ends_the_rollout():
    trajectory, _, session = await play("glm4_5", [GLM_CALL + "<|user|>"], results=1)
    assert (trajectory.stop_reason, trajectory.stop_detail) == (StopReason.MAX_TURNS, StopDetail.ROLE_OPENED)
    assert trajectory.error == ""
    assert len(session.calls) == 1
    (datum,) = to_data(trajectory, reward=0.0)
    assert datum.trainable
    assert datum.response[-1] == tokenizer("glm4_5").added_tokens["<|user|>"]


@pytest.mark.published
async def test_a_role_opener_that_fits_goes_on():
    said = [GLM_CALL + "<|observation|>", "\nDone?<|user|>", "\nYes.<|user|>"]
    trajectory, engine, _ = await play("glm4_5", said, results=1, max_nudges=1)
    assert [len(turn.action_ids) for turn in trajectory.turns] == [len(say("glm4_5", text).token_ids) for text in said]
    tok = tokenizer("glm4_5")
    final = tok.decode(engine.requests[2].token_ids)
    assert final.count("<|observation|>") == 1
    assert final.count("<|user|>") == 2
    assert "</tool_call><|observation|>\n<tool_response>\nok\n</tool_response><|assistant|>" in final


async def test_reasoning_opened_by_user_is_closed_after_a_result():
    call = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>act<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    end = "<｜end▁of▁sentence｜>"
    said = [f"Hm.</think>{call}{end}", f"{call}{end}", f"Done.{end}"]
    trajectory, _, session = await play("deepseek_v3_1_think", said, results=2, max_nudges=0)
    assert [turn.action.reasoning for turn in trajectory.turns] == ["Hm.", "", ""]
    assert len(session.calls) == 2


@pytest.mark.published
async def test_texts_in_a_call_get_the_types_of_shown_tools():
    text = GLM_CALL.replace(">go<", ">3<") + "<|observation|>"
    number = ToolSpec(name="act", parameters={"type": "object", "properties": {"x": {"type": "integer"}}})
    for tool, expected in ((number, 3), (ToolSpec(name="act", parameters=TEXT), "3")):
        engine, session = ScriptedEngine([say("glm4_5", text)]), ScriptedSession([RESULT], tools=(tool,))
        await rollout(
            RolloutSpec(task=TASK, rollout_id="k", limits=Limits(max_turns=1)),
            session=session,
            renderer=renderer("glm4_5"),
            engine=engine,
        )
        assert [call.arguments for call in session.calls] == [{"x": expected}]
