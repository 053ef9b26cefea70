"""Budgets, faults, endings and tools of an episode at the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec import structs
from orl_core.datum import to_data
from orl_core.errors import EngineError, RenderError
from orl_core.messages import FailureKind, TextBlock, ToolCall, ToolResult, ToolSpec
from orl_core.trajectory import ROOT, Generation, RolloutSpec, StopDetail, StopReason
from orl_gateway import Episode
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.exchange import ModelRequest, RequestRefused
from orl_testing import ScriptedEngine, ScriptedSession
from orl_testing.scripted import Hang

from tests.gateway.agents import (
    LIMITS,
    RENDERER,
    TASK,
    TOKENIZER,
    Agent,
    ChatAgent,
    Model,
    call_text,
    episode_of,
    generation_of,
    turn,
)

LOST = '{"name": "look", "arguments": {"at": 1}}\n</tool_call>'  # a call without its opening
LOOK_TOOL = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {"type": "integer"}}})


def agent_of(**fields: Any) -> Agent:
    agent = ChatAgent()
    agent.wire |= fields
    agent.user("Begin.")
    return agent


def request_of(**fields: Any) -> ModelRequest:
    return CHAT.read(agent_of(**fields).request())


def engine_of(*texts: str) -> ScriptedEngine:
    return ScriptedEngine([generation_of(text) for text in texts])


async def refusal_of(episode: Episode, request: ModelRequest | None = None) -> RequestRefused:
    with pytest.raises(RequestRefused) as refused:
        await episode.ask(request or request_of())
    return refused.value


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_cancelled_request_keeps_what_was_sampled(steps: int) -> None:
    """An episode that ends cancels its requests wherever they are: what the engine returned is in a row."""
    engine = Model(("reasoned",))
    async with episode_of(engine) as episode:
        agents = [ChatAgent() for _ in range(8)]
        for agent in agents:
            agent.user("Begin.")
        asking = [asyncio.ensure_future(turn(episode, agent)) for agent in agents]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        sampled = sorted(generation.token_ids for _, generation in engine.requests)
        assert sorted(one.action_ids for one in episode.trajectory().turns) == sampled


async def test_action_that_cannot_be_parsed_stays_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault after the end makes no ERROR of the episode, so its ids must not be lost."""

    def fails(*_: object, **__: object) -> None:
        raise RenderError("no action")

    monkeypatch.setattr(RENDERER, "read", fails)
    async with episode_of(engine_of("Well.")) as episode:
        asking = asyncio.ensure_future(episode.ask(request_of()))
        await asyncio.sleep(0)
        episode.state.end(StopReason.FINISHED)
        await asyncio.gather(asking, return_exceptions=True)
    assert episode.trajectory().stop_reason is StopReason.FINISHED
    assert [one.action_ids for one in episode.trajectory().turns] == [generation_of("Well.").token_ids]


async def test_closed_episode_asks_the_engine_nothing() -> None:
    """A host that cancels an episode ends no agent: a request that arrives at that moment is refused."""
    engine, session = Model(), ScriptedSession(tools=(LOOK_TOOL,))
    async with episode_of(engine, session) as episode:
        pass
    assert (await refusal_of(episode)).code == "episode_over"
    with pytest.raises(RequestRefused):
        await episode.tools.call(ToolCall(name="look"))
    assert (engine.requests, session.calls) == ([], [])
    assert episode.trajectory().stop_reason is StopReason.ABORTED


async def test_turn_after_the_last_one_is_refused() -> None:
    async with episode_of(Model(), max_turns=2) as episode:
        for _ in range(2):
            await episode.ask(request_of())
        assert (await refusal_of(episode)).code == "budget_exhausted"
        assert (await refusal_of(episode)).code == "episode_over"
        await episode.finish()
    assert episode.trajectory().stop_reason is StopReason.MAX_TURNS
    assert len(episode.trajectory().turns) == 2


async def test_request_beyond_the_context_is_refused_and_a_shorter_one_continues() -> None:
    async with episode_of(Model(), context_tokens=500) as episode:
        agent = agent_of()
        await turn(episode, agent)
        agent.answer("word " * 200)
        refusal = await refusal_of(episode, CHAT.read(agent.request()))
        assert (refusal.code, refusal.status) == ("context_length_exceeded", 400)
        agent.said.pop()
        agent.user("word " * 10_000)
        assert (await refusal_of(episode, CHAT.read(agent.request()))).code == "context_length_exceeded"
        await episode.ask(request_of())
    assert [turn.continues for turn in episode.trajectory().turns] == [None, ROOT]


@pytest.mark.parametrize("compacts", [False, True])
async def test_agent_that_ends_at_the_full_context_says_why(compacts: bool) -> None:
    async with episode_of(Model(), context_tokens=500) as episode:
        agent = agent_of()
        await turn(episode, agent)
        agent.answer("word " * 300)
        await refusal_of(episode, CHAT.read(agent.request()))
        if compacts:
            await episode.ask(request_of())
        await episode.finish()
    assert episode.trajectory().ending == (StopDetail.NO_CALL if compacts else StopReason.MAX_TOKENS)


class Greedy:
    """An engine that returns as many ids as it may."""

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        await asyncio.sleep(0)
        count = sampling["max_new_tokens"]
        return Generation(token_ids=(9,) * count, logprobs=(-1.0,) * count, finish_reason="length")


async def test_turns_side_by_side_share_the_sampled_ids() -> None:
    async with episode_of(Greedy(), rollout_tokens=100, turn_tokens=30) as episode:
        asked = [episode.ask(request_of()) for _ in range(7)]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        trajectory = episode.trajectory()
    assert sum(len(turn.action_ids) for turn in trajectory.turns) == 100
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert sum(isinstance(reply, RequestRefused) for reply in replies) == 3


async def test_client_lowers_the_tokens_of_a_turn_and_no_call_of_a_cut_action_is_sent() -> None:
    cut = generation_of(call_text("look") + "\nand", finish="length")
    engine = ScriptedEngine([cut])
    async with episode_of(engine, turn_tokens=200) as episode:
        reply = await episode.ask(request_of(max_tokens=90))
        assert (await refusal_of(episode, request_of(max_tokens=0))).code == "invalid_request"
    assert engine.requests[0].sampling["max_new_tokens"] == 90
    assert (reply.ending, reply.calls) == ("length", ())
    assert "and" in reply.text


async def test_sampling_is_the_trainers() -> None:
    model = Model()
    async with episode_of(model) as episode:
        await episode.ask(request_of(temperature=0.1, top_p=0.2, seed=5))
    assert model.samplings[0]["temperature"] == 0.7
    assert not {"top_p", "seed"} & model.samplings[0].keys()
    assert model.samplings[0]["no_stop_trim"] is True


async def test_deadline_ends_the_episode_with_timeout() -> None:
    async with episode_of(ScriptedEngine([], pause=Hang), rollout_timeout=0.05) as episode:
        assert (await refusal_of(episode)).code == "budget_exhausted"
    assert episode.trajectory().stop_reason is StopReason.TIMEOUT
    assert not episode.trajectory().trainable


FAULTS: dict[str, Any] = {
    "ours": EngineError("gone"),
    "foreign": OSError("gone"),
    "too many ids": generation_of("word " * 5_000),
    "no id": Generation(token_ids=(), logprobs=(), finish_reason="stop"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_engine_fault_is_an_error_that_never_trains(fault: str) -> None:
    async with episode_of(ScriptedEngine([generation_of("Well."), FAULTS[fault]])) as episode:
        await episode.ask(request_of())
        refusal = await refusal_of(episode)
        assert (refusal.code, refusal.status) == ("engine_fault", 502)
        assert (await refusal_of(episode)).status == 502
        await episode.finish()
    trajectory = episode.trajectory()
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error
    assert [sum(datum.loss_mask) for datum in to_data(trajectory, reward=1.0)] == [0]


async def test_abort_that_nobody_asked_for_is_continued_in_one_turn() -> None:
    whole = generation_of("I look on.")
    parts = [
        Generation(token_ids=whole.token_ids[:2], logprobs=whole.logprobs[:2], finish_reason="abort"),
        Generation(token_ids=whole.token_ids[2:], logprobs=whole.logprobs[2:], finish_reason="stop"),
    ]
    engine = ScriptedEngine(parts)
    async with episode_of(engine) as episode:
        assert (await episode.ask(request_of())).text == "I look on."
    (only,) = episode.trajectory().turns
    assert only.action_ids == whole.token_ids
    assert engine.requests[1].token_ids == (*engine.requests[0].token_ids, *whole.token_ids[:2])


@pytest.mark.parametrize("stops", [True, False])
async def test_ids_of_an_unfinished_action_are_kept(stops: bool) -> None:
    part = structs.replace(generation_of("I look on."), finish_reason="abort")
    part = structs.replace(part, token_ids=part.token_ids[:2], logprobs=part.logprobs[:2])
    engine = ScriptedEngine([part, EngineError("gone")])
    async with episode_of(engine, stopped=lambda: stops and bool(engine.requests)) as episode:
        await refusal_of(episode)
        await episode.finish()
    trajectory = episode.trajectory()
    assert trajectory.stop_reason is (StopReason.ABORTED if stops else StopReason.ERROR)
    assert [turn.action_ids for turn in trajectory.turns] == [part.token_ids]


async def test_result_of_a_tool_belongs_to_the_turn_that_called() -> None:
    rewarded = [ToolResult(name="look", content=(TextBlock(text=str(at)),), reward=at / 2) for at in range(3)]
    session = ScriptedSession(rewarded, tools=(LOOK_TOOL,))
    async with episode_of(engine_of(call_text("look", at=1), call_text("look", at=2), "Well."), session) as episode:
        agent = agent_of()
        await turn(episode, agent)
        other = agent.branch()
        agent.answer("Result")
        await turn(episode, agent)
        other.answer("Other")
        await turn(episode, other)
        for at in (1, 2, 3):
            await episode.tools.call(ToolCall(name="look", arguments={"at": at}))
        trajectory = episode.trajectory()
    assert [[result.reward for result in turn.results] for turn in trajectory.turns] == [[0.0], [0.5], [1.0]]
    assert trajectory.rewards == (0.0, 0.5, 1.0)


async def test_result_before_the_first_turn_is_kept() -> None:
    session = ScriptedSession([ToolResult(name="look", reward=0.25), ToolResult(name="look")], tools=(LOOK_TOOL,))
    async with episode_of(Model(), session) as episode:
        await episode.tools.call(ToolCall(name="look"))
        await episode.ask(request_of())
        trajectory = episode.trajectory()
    assert trajectory.rewards == (0.25,)


async def test_episode_that_finished_refuses_everything() -> None:
    session = ScriptedSession([ToolResult(name="look", finished=True, reward=1.0)], tools=(LOOK_TOOL,))
    async with episode_of(Model(), session) as episode:
        await episode.ask(request_of())
        await episode.tools.call(ToolCall(name="look"))
        assert (await refusal_of(episode)).code == "episode_over"
        with pytest.raises(RequestRefused):
            await episode.tools.call(ToolCall(name="look"))
        with pytest.raises(RequestRefused):
            await episode.count(request_of())
        await episode.finish()
    assert episode.trajectory().stop_reason is StopReason.FINISHED


async def test_last_text_is_the_answer_where_the_environment_takes_one() -> None:
    session = ScriptedSession([ToolResult(name="answer", reward=1.0)], accepts_text_answer=True)
    async with episode_of(engine_of("It was the cook."), session) as episode:
        await episode.ask(request_of())
        await episode.finish()
    assert session.answers == ["It was the cook."]
    assert episode.trajectory().rewards == (1.0,)
    assert episode.trajectory().stop_reason is StopReason.FINISHED


@pytest.mark.parametrize("said", ["", f"It was the cook.\n{LOST}"], ids=["nothing", "a call without its opening"])
async def test_last_text_is_no_answer_if_there_is_none(said: str) -> None:
    session = ScriptedSession([ToolResult(name="answer", reward=1.0)], accepts_text_answer=True)
    async with episode_of(engine_of(said), session) as episode:
        await episode.ask(request_of())
        await episode.finish()
    assert session.answers == []
    assert episode.trajectory().stop_detail is StopDetail.NO_CALL


@pytest.mark.parametrize(("before", "sent"), [("I look.\n", 0), (call_text("look", at=1), 1)])
async def test_call_without_its_opening_is_told(before: str, sent: int) -> None:
    async with episode_of(engine_of(f"<think>\nHm.\n</think>\n\n{before}{LOST}")) as episode:
        reply = await episode.ask(request_of())
    assert [result.failure for _, result in reply.refused] == [FailureKind.UNOPENED]
    assert (len(reply.calls), LOST in reply.text) == (sent, not sent)


async def test_episode_without_an_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> tuple[int, ...]:
        raise RenderError("the template cannot")

    monkeypatch.setattr(RENDERER, "open", fails)
    async with episode_of(Model()) as episode:
        assert (await refusal_of(episode)).status == 400
        await episode.finish()
    assert episode.trajectory().stop_reason is StopReason.ERROR
    assert "the template cannot" in episode.trajectory().error


async def test_conversation_that_the_template_cannot_continue_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> tuple[int, ...]:
        raise RenderError("the template cannot")

    model = Model()
    async with episode_of(model) as episode:
        agent = agent_of()
        await turn(episode, agent)
        agent.answer("Go on.")
        monkeypatch.setattr(RENDERER, "extend", fails)
        await turn(episode, agent)
    assert [turn.continues for turn in episode.trajectory().turns] == [None, ROOT]
    assert "I say the number 0." in TOKENIZER.decode(model.requests[1][0])


async def test_text_of_a_broken_call_is_given_and_the_row_continues() -> None:
    model = Model(("broken", "text"))
    async with episode_of(model) as episode:
        agent = agent_of()
        body = await turn(episode, agent)
        agent.answer("Write JSON.")
        await turn(episode, agent)
    first, second = episode.trajectory().turns
    assert '"look"' in body["choices"][0]["message"]["content"]
    assert second.continues is None
    assert first.failed


def alone(agent: Agent) -> None:
    agent.wire["parallel_tool_calls"] = False


@pytest.mark.parametrize(("kind", "change"), [("half_broken", lambda _: None), ("calls", alone)])
async def test_model_reads_what_is_wrong_with_a_call(kind: str, change: Callable[[Agent], None]) -> None:
    model = Model((kind, "text"))
    async with episode_of(model) as episode:
        agent = agent_of()
        change(agent)
        body = await turn(episode, agent)
        agent.answer("A wall")
        await turn(episode, agent)
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    first, second = episode.trajectory().turns
    shown = TOKENIZER.decode(second.observation)
    assert shown.index("A wall of 0") < shown.index("Error: ")
    assert (second.continues, first.failed) == (None, False)


async def test_no_call_is_sent_where_none_is_wanted() -> None:
    async with episode_of(Model(("call",))) as episode:
        reply = await episode.ask(request_of(tool_choice="none"))
    assert (reply.calls, reply.ending) == ((), "stop")
    assert '"name": "look"' in reply.text  # as servers of models give it: an empty answer would tell the agent nothing


async def test_stop_sequence_ends_the_text_and_keeps_the_row() -> None:
    cut = generation_of("One. STOP")
    cut = structs.replace(cut, token_ids=cut.token_ids[:-1], logprobs=cut.logprobs[:-1])
    engine = ScriptedEngine([cut, generation_of("Two.")])
    async with episode_of(engine) as episode:
        agent = agent_of(stop=["STOP", "HALT"])
        body = await turn(episode, agent)
        agent.answer("Go on.")
        await turn(episode, agent)
    assert body["choices"][0]["message"]["content"] == "One. "
    assert engine.requests[0].sampling["stop"] == ["STOP", "HALT"]
    assert engine.requests[1].token_ids[: len(engine.requests[0].token_ids) + len(cut.token_ids)] == (
        *engine.requests[0].token_ids,
        *cut.token_ids,
    )


async def test_usage_counts_what_the_engine_was_shown() -> None:
    model, usage = Model(), dict[str, Any]()
    async with episode_of(model) as episode:
        agent = agent_of()
        usage: Any = None
        for number in range(3):
            counted = await episode.count(CHAT.read(agent.request()))
            usage = (await turn(episode, agent))["usage"]
            shown, generation = model.requests[number]
            assert counted == usage["prompt_tokens"] == len(shown)
            assert usage["completion_tokens"] == len(generation.token_ids)
            agent.answer("Go on")
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_count_renders_once_with_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    render = RENDERER.open
    monkeypatch.setattr(RENDERER, "open", lambda *given: opened.append(given) or render(*given))
    async with episode_of(Model()) as episode:
        await episode.count(request_of())
        await episode.ask(request_of())
    assert len(opened) == 1


async def test_opening_with_other_reasoning_is_rendered_anew() -> None:
    model = Model()
    async with episode_of(model) as episode:
        for thought in ("First thought.", "Second thought."):
            agent = agent_of()
            call = {"id": "call_x", "function": {"name": "look", "arguments": "{}"}}
            agent.said.append({"role": "assistant", "reasoning_content": thought, "tool_calls": [call]})
            agent.add_results([("call_x", "A wall.")])
            await episode.ask(CHAT.read(agent.request()))
    first, second = (TOKENIZER.decode(ids) for ids, _ in model.requests)
    assert ("First thought." in first, "First thought." in second) == (True, False)
    assert "Second thought." in second


async def seeds_of(seed: int) -> list[int]:
    model = Model()
    job = RolloutSpec(task=TASK, rollout_id="k", limits=LIMITS, sampling={"sampling_seed": seed, "stop": "END"})
    async with Episode(job, session=ScriptedSession(), renderer=RENDERER, engine=model) as episode:
        for _ in range(3):
            await episode.ask(request_of(stop=["STOP"]))
    assert all(sampling["stop"] == ["END", "STOP"] for sampling in model.samplings)
    return [sampling["sampling_seed"] for sampling in model.samplings]


async def test_branches_of_one_point_draw_apart() -> None:
    assert len({*await seeds_of(7)}) == 3
    assert await seeds_of(7) == await seeds_of(7)
    assert not {*await seeds_of(7)} & {*await seeds_of(8)}
