"""Scripted episodes for the tests of the loop: two tools, a tokenizer of ours, and what an engine says in text."""

from __future__ import annotations

from typing import Any

from orl_core.limits import Limits
from orl_core.messages import TextBlock, ToolResult, ToolSpec
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, Trajectory
from orl_rollout.loop.clock import give_up, never
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import rollout
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit.tokenizers import renderer_of, tokenizer

TOKENIZER = tokenizer()
RENDERER = renderer_of()
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = (ToolSpec(name="act", parameters=SCHEMA), ToolSpec(name="look"))
TASK = Task(env_name="A/B", deployment_name="A/B", task_spec={"id": 1})


def call(x: Any = 1, name: str = "act") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"x": {x}}}}}\n</tool_call>'


def say(text: str, reason: str = "stop") -> Generation:
    """A generation of `text`, closed at its end."""
    ids = TOKENIZER.encode_joint(text + ("<|im_end|>" if reason == "stop" else ""))
    return Generation(token_ids=tuple(ids), logprobs=(-0.5,) * len(ids), finish_reason=reason)  # type: ignore[arg-type]


def result(text: str = "ok", **fields: Any) -> ToolResult:
    return ToolResult(name="act", content=(TextBlock(text=text),), **fields)


async def play(
    engine: Engine | list[Any], session: ScriptedSession, stopped: Any = never, pause: Any = give_up, **limits: Any
) -> Trajectory:
    job = RolloutSpec(task=TASK, rollout_id="k", limits=Limits(**limits), sampling={"temperature": 0.7})
    engine = ScriptedEngine(engine) if isinstance(engine, list) else engine
    trajectory = await rollout(job, session=session, renderer=RENDERER, engine=engine, stopped=stopped, pause=pause)
    assert session.closed == 1
    return trajectory


def session_of(*script: ToolResult | Exception, **options: Any) -> ScriptedSession:
    return ScriptedSession(script, tools=TOOLS, **options)


def shown(engine: ScriptedEngine, request: int) -> str:
    """Return the text that the engine was shown in a request."""
    return TOKENIZER.decode(engine.requests[request].token_ids)
