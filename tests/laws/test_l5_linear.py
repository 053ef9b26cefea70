"""Law L5: cost is linear. Nothing of the history is rendered, tokenized or converted again; counted, never timed.

What a rollout hands to the tokenizer, to the template and to the JSON of its requests is what its turns added: the
count for many turns is the sum of the counts for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orl_core.limits import Limits
from orl_core.messages import TextBlock, ToolResult, ToolSpec
from orl_core.render import Renderer
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import rollout
from orl_rollout.loop.token_buffer import TokenBuffer
from orl_rollout.sglang.client import SglangEngine
from orl_testing import ScriptedEngine, ScriptedSession, SglangServer

from tests.kit import one_loop
from tests.kit.tokenizers import tokenizer
from tests.laws.counting import Counting

TASK = Task(env_name="A/B", deployment_name="A/B", task_spec={"id": 1})
TOKENIZER = tokenizer()


class Watching:
    """An engine that keeps the context it was shown, and sends it on to another."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.contexts: list[Sequence[int]] = []

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        self.contexts.append(ids)
        return await self._inner.generate(ids, sampling, key=key)


COUNTING = Counting(TOKENIZER)
RENDERER = Renderer(COUNTING)


def action(thought: str, argument: int) -> tuple[int, ...]:
    """A call with reasoning before it."""
    call = f'<tool_call>\n{{"name": "act", "arguments": {{"x": {argument}}}}}\n</tool_call><|im_end|>'
    opened, closed = TOKENIZER.added_tokens["<think>"], TOKENIZER.added_tokens["</think>"]
    (ids,) = TOKENIZER.encode([thought])
    return (opened, *ids, closed, *TOKENIZER.encode_joint("\n\n" + call))


Turns = list[tuple[str, int, str]]  # the thought and the argument of each action, and the result it gets


async def play(engine: Engine, turns: Turns, renderer: Renderer = RENDERER, **limits: Any) -> Trajectory:
    """One rollout of these turns; the last result ends it."""
    results = [
        ToolResult(name="act", content=(TextBlock(text=text),), finished=index == len(turns))
        for index, (_, _, text) in enumerate(turns, 1)
    ]
    job = RolloutSpec(task=TASK, rollout_id="rollout-7", limits=Limits(max_turns=50, **limits))
    session = ScriptedSession(results, tools=(ToolSpec(name="act"),))
    trajectory = await rollout(job, session=session, renderer=renderer, engine=engine)
    assert trajectory.stop_reason is StopReason.FINISHED, trajectory.error
    assert len(trajectory.turns) == len(turns)
    return trajectory


def played(turns: Turns, renderer: Renderer = RENDERER) -> tuple[int, int, int]:
    """Return what a rollout of these turns gave to the tokenizer."""
    script = [
        Generation(token_ids=ids, logprobs=(-1.0,) * len(ids), finish_reason="stop")
        for ids in (action(thought, argument) for thought, argument, _ in turns)
    ]
    COUNTING.spent()
    one_loop.run(play(ScriptedEngine(script), turns, renderer))
    return COUNTING.spent()


words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=40)
any_turns = st.lists(st.tuples(words, st.integers(0, 10**6), words), min_size=1, max_size=8)
last = ("", 0, "")
fifth = settings(max_examples=settings().max_examples // 5)  # each of five; all have as many as any law


def check_sum(turns: Turns, renderer: Renderer = RENDERER) -> None:
    """Each turn costs what it costs in a rollout of its own, whatever came before it."""
    played([turns[0], last], renderer)  # the plan of this shape is made once
    base = played([last], renderer)
    alone = [played([turn, last], renderer) for turn in turns]
    together = played([*turns, last], renderer)
    for count in (0, 1):
        added = [cost[count] - base[count] for cost in alone]
        assert all(added)
        assert together[count] == base[count] + sum(added)


@fifth
@given(turns=any_turns)
def test_rollout_tokenizes_only_what_a_turn_adds(turns):
    check_sum(turns)


def test_a_renderer_that_looks_at_the_history_again_is_seen():
    """The check above fails for one that decodes all actions in every turn."""

    class Forgetful(Renderer):
        said: tuple[int, ...] = ()

        def extend(self, action_ids: Sequence[int], *args: Any, **kwargs: Any) -> tuple[int, ...]:
            self.said = (*self.said, *action_ids)
            COUNTING.decode(self.said)
            return super().extend(action_ids, *args, **kwargs)

    with pytest.raises(AssertionError):
        check_sum([("a", 1, "b")] * 4, Forgetful(COUNTING))


@fifth
@given(turns=any_turns, repeats=st.integers(2, 5))
def test_template_renders_do_not_grow_with_turns(turns, repeats):
    played([turns[0], last])  # the plan of this shape is made once
    assert played(turns * repeats)[2] == played([last])[2] <= 2


async def through_sglang(turns: Turns, **limits: Any) -> tuple[SglangServer, list[Sequence[int]], Trajectory]:
    """A rollout of these turns against the stand-in; the server, what the engine was shown, the trajectory."""
    script = [action(thought, argument) for thought, argument, _ in turns]
    async with SglangServer(script) as server, SglangEngine(server.url, context_tokens=32768) as engine:
        watching = Watching(engine)
        return server, watching.contexts, await play(watching, turns, **limits)


@fifth
@given(turns=any_turns)
@example(turns=[("Hm.", 1, "ok")] * 8)
def test_every_id_is_encoded_to_json_once(turns):
    server, contexts, trajectory = one_loop.run(through_sglang(turns))
    (context,) = {id(context): context for context in contexts}.values()
    assert isinstance(context, TokenBuffer)
    shown = len(context) - len(trajectory.turns[-1].action_ids)
    assert context.encoded == shown == len(server.requests[-1].body["input_ids"])
    shown_last = [token for turn in trajectory.turns for token in (*turn.observation, *turn.action_ids)][:shown]
    assert server.requests[-1].body["input_ids"] == shown_last


@fifth
@given(turns=any_turns)
def test_stripped_reasoning_is_not_encoded_the_rest_once(turns):
    server, contexts, trajectory = one_loop.run(through_sglang(turns, strip_reasoning=True))
    (context,) = {id(context): context for context in contexts}.values()
    assert isinstance(context, TokenBuffer)
    assert context.encoded == len(server.requests[-1].body["input_ids"])
    assert all(turn.stripped_spans for turn in trajectory.turns[:-1])
    remains = [token for turn in trajectory.turns[:-1] for token in turn.visible_ids]
    assert server.requests[-1].body["input_ids"] == [*remains, *trajectory.turns[-1].observation]


@fifth
@given(turns=any_turns)
def test_no_prompt_logprobs_and_one_worker_for_each_key(turns):
    server, _, trajectory = one_loop.run(through_sglang(turns))
    assert {request.headers["X-SMG-Routing-Key"] for request in server.requests} == {"rollout-7"}
    for request in server.requests:
        assert set(request.body) == {"input_ids", "sampling_params", "return_logprob"}
        assert request.body["return_logprob"] is True
    cached = [turn.generations[0].cached_tokens for turn in trajectory.turns]
    seen = [len(request.body["input_ids"]) for request in server.requests]
    sampled = [len(turn.action_ids) for turn in trajectory.turns]
    assert cached == [0, *(size + made for size, made in zip(seen[:-1], sampled[:-1], strict=True))]


async def test_the_body_is_the_json_of_the_request():
    """Whatever way it is written, it is the same JSON."""
    async with SglangServer([[8]]) as server, SglangEngine(server.url, context_tokens=100) as engine:
        await engine.generate(TokenBuffer([1, 23, 456]), {"max_new_tokens": 3}, key="a")
    assert json.dumps(server.requests[0].body["input_ids"]) == "[1, 23, 456]"
