"""What the gateway forgives or samples freely: dropped text of calls, answers named by id, demanded calls."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import EnvironmentConfig
from orl_core.errors import ConfigError
from orl_core.messages import ToolSpec
from orl_core.text import clean, map_strings
from orl_core.trajectory import ROOT, RolloutSpec
from orl_gateway import Gateway
from orl_gateway.agent.agent_player import player_of
from orl_gateway.api.gateway import repaired
from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.client_api import ClientApi
from orl_gateway.dialects.exchange import RequestRefused
from orl_gateway.dialects.responses import RESPONSES
from orl_rollout import metrics_of, stats_of
from orl_rollout.results.outcome import outcome_of
from orl_rollout.runtime.runtime import load_player
from orl_testing import ScriptedSession

from tests.gateway.agents import (
    LIMITS,
    LOOK,
    RENDERER,
    TASK,
    TOKENIZER,
    ChatAgent,
    Model,
    ResponsesAgent,
    episode_of,
    turn,
)
from tests.gateway.test_player import config_of
from tests.kit.secrets import NO_SECRETS

USER: Any = {"role": "user", "content": "Hi."}
FUNCTIONS: Any = [{"type": "function", "function": LOOK}]
AUTO: list[Any] = [
    "auto",
    {"type": "auto"},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": LOOK}]}},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
]
DEMANDS: list[tuple[ClientApi, Any, str]] = [
    (CHAT, "required", ""),
    (CHAT, {"type": "function", "function": {"name": "look"}}, "look"),
    (RESPONSES, "required", ""),
    (RESPONSES, {"type": "function", "name": "look"}, "look"),
    (RESPONSES, {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}, ""),
    (ANTHROPIC, {"type": "any"}, ""),
    (ANTHROPIC, {"type": "tool", "name": "look"}, "look"),
]


@given(st.lists(st.sampled_from([*'ab\\"\n\x7fé\ufffd😀', "\ud83d", "\ude00", "\\ud83d", "u", "d83d"])))
def test_half_a_character_is_repaired_as_in_results(pieces: list[str]) -> None:
    text = "".join(pieces)
    for body in (json.dumps({text: [text]}), json.dumps({text: [text]}).replace("\\ud", "\\uD")):
        assert msgspec.json.decode(repaired(body.encode())) == map_strings(json.loads(body), clean)


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "messages/count_tokens"])
async def test_request_with_half_a_character_is_played(path: str) -> None:
    messages = b'[{"role": "user", "content": "cut here: \\ud83d"}]'
    name = b'input"' if path == "responses" else b'max_tokens": 99, "messages"'
    body = b'{"model": "m", "%s: %s}' % (name, messages)
    model = Model(("reasoned",))
    async with Gateway() as gateway, episode_of(model) as episode, aiohttp.ClientSession() as http:
        answer = await http.post(f"{gateway.base_url(gateway.add(episode))}/v1/{path}", data=body)
        assert answer.status == 200, await answer.text()
    assert all("cut here: \ufffd" in TOKENIZER.decode(ids) for ids, _ in model.requests)


@pytest.mark.parametrize("text", [None, "", "absent"])
async def test_text_dropped_beside_calls_is_one_row(text: str | None) -> None:
    """CrewAI sends null, Semantic Kernel no content; the ids of the calls prove which answer is meant."""
    async with episode_of(Model(("reasoned",))) as episode:
        agent = ChatAgent()
        agent.user("Begin.")
        for _ in range(4):
            await turn(episode, agent)
            del agent.said[-1]["content"]
            if text != "absent":
                agent.said[-1]["content"] = text
            agent.answer("Go on.")
        trajectory = episode.trajectory()
    assert [one.continues for one in trajectory.turns] == [None] * 4
    assert trajectory.counts == {"dropped_text": 3}
    metrics = metrics_of([stats_of(outcome_of(trajectory, EnvironmentConfig(), NO_SECRETS))])
    assert (metrics["A/B/rows"], metrics["A/B/agent/dropped_text"]) == (1.0, 3.0)


@pytest.mark.parametrize("change", ["other text", "other arguments", "other ids"])
async def test_what_proves_no_answer_stays_an_edit(change: str) -> None:
    async with episode_of(Model(("reasoned",))) as episode:
        agent = ChatAgent()
        agent.user("Begin.")
        await turn(episode, agent)
        agent.answer("Go on.")
        await turn(episode, agent)
        said, (call,) = agent.said[-1], agent.said[-1]["tool_calls"]
        said["content"] = "Other." if change == "other text" else None
        if change == "other arguments":
            call["function"]["arguments"] = '{"at": 99}'
        elif change == "other ids":
            call["id"] = agent.owed[0] = "call_mine"
        agent.answer("Go on.")
        await turn(episode, agent)
        trajectory = episode.trajectory()
    assert trajectory.turns[-1].continues == ROOT
    assert trajectory.counts == {}


async def test_answer_named_by_its_id_goes_on() -> None:
    """Agent Framework sends what is new alone, and the id of the answer before."""
    async with episode_of(Model(("reasoned", "calls", "text"))) as episode:
        agent = ResponsesAgent()
        agent.user("Begin.")
        for _ in range(6):
            body = await turn(episode, agent)
            agent.wire |= {"input": [], "previous_response_id": body["id"]}
            agent.answer("Go on.")
        assert [one.continues for one in episode.trajectory().turns] == [None] * 6
        first = episode.trajectory().turns[0].messages
        assert [message.role for message in first] == ["system", "user"]


async def test_unknown_answer_is_refused() -> None:
    async with episode_of(Model()) as episode, episode_of(Model()) as other:
        agent, stranger = ResponsesAgent(), ResponsesAgent()
        stranger.user("Begin.")
        body = await turn(other, stranger)
        for id_ in (body["id"], "resp_none", "x"):
            agent.wire |= {"input": "Go on.", "previous_response_id": id_}
            with pytest.raises(RequestRefused, match="previous_response_id") as refused:
                await turn(episode, agent)
            assert refused.value.status == 400


def body_of(api: ClientApi, choice: Any) -> bytes:
    given = {"input": "Hi."} if api is RESPONSES else {"messages": [USER]}
    return json.dumps({**given, "tool_choice": choice}).encode()


@pytest.mark.parametrize("choice", AUTO)
@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=lambda api: api.name)
def test_choice_that_demands_nothing_is_accepted(api: ClientApi, choice: Any) -> None:
    request = api.read(body_of(api, choice))
    assert (request.demand, request.allows_calls) == (None, True)


@pytest.mark.parametrize(("api", "choice", "demand"), DEMANDS)
async def test_demanded_call_is_refused_or_sampled(api: ClientApi, choice: Any, demand: str) -> None:
    with pytest.raises(RequestRefused, match=r"`auto`.*agent\.forced_calls: sample"):
        api.read(body_of(api, choice))
    async with episode_of(Model(("call", "text"))) as episode:
        episode.history.samples_forced_calls = True
        request = api.read(body_of(api, choice), episode.history)
        assert request.demand == demand
        for _ in range(2):
            await episode.ask(request)
        assert episode.trajectory().counts == {"forced_calls_unmet": 1}


async def test_call_outside_the_allowed_tools_is_not_sent() -> None:
    async with episode_of(Model(("calls",))) as episode:
        tools = [*FUNCTIONS, {"type": "function", "function": {"name": "wait"}}]
        only = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "wait"}}]}}
        body = json.dumps({"messages": [USER], "tools": tools, "tool_choice": only}).encode()
        reply = await episode.ask(CHAT.read(body, episode.history))
    assert [sent.call.name for sent in reply.calls] == ["wait"]


def test_section_and_name_of_a_function_are_one() -> None:
    names = ("json:loads", {"function": "json:loads"}, {"function": "json:loads", "forced_calls": "sample"})
    sections = [config_of(agent=agent).agent_config for agent in names]
    assert [section.name for section in sections if section] == ["json:loads"] * 3
    assert [section.forced_calls for section in sections if section] == ["refuse", "refuse", "sample"]


def test_agent_without_a_name_plays_nothing() -> None:
    with pytest.raises(ConfigError, match="command"):
        load_player(config_of(agent={"forced_calls": "sample"}))


async def test_player_samples_demanded_calls_if_it_is_told_to() -> None:
    for forced, refused in (("refuse", True), ("sample", False)):
        named = {"function": "tests.gateway.test_forgiven:demanding", "forced_calls": forced}
        section = config_of(agent=named).agent_config
        assert section is not None
        job = RolloutSpec(task=TASK, rollout_id="k", limits=LIMITS)
        engine, session = Model(("text",)), ScriptedSession(tools=(ToolSpec(name="look"),))
        trajectory = await player_of(section)(job, session=session, renderer=RENDERER, engine=engine)
        assert bool(trajectory.error) is refused
        assert trajectory.counts == ({} if refused else {"forced_calls_unmet": 1})


async def demanding(episode: Any) -> None:
    """An agent that demands a call, as smolagents does."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
        await client.chat.completions.create(
            model=episode.model, messages=[USER], tools=FUNCTIONS, tool_choice="required"
        )
