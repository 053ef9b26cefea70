"""Habits of published clients, as they were seen on the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.client_api import ClientApi
from orl_gateway.dialects.exchange import ModelRequest, RequestRefused
from orl_gateway.dialects.responses import RESPONSES

from tests.gateway.agents import ChatAgent, Model, ResponsesAgent, episode_of, turn
from tests.gateway.replies import REPLIES

USER = {"role": "user", "content": "Hi."}
REQUEST = ModelRequest(messages=())


def read(api: ClientApi, **fields: Any) -> ModelRequest:
    return api.read(json.dumps(fields).encode())


def test_reasoning_has_a_signature() -> None:
    """pydantic-ai sends reasoning without one back as a user's text: each turn would be a row of its own."""
    reasoning = ANTHROPIC.body(REPLIES["calls"], REQUEST)["content"][0]
    assert reasoning["signature"]
    begun, *deltas = (event for event in ANTHROPIC.events(REPLIES["calls"], REQUEST) if event.get("index") == 0)
    assert begun["content_block"]["signature"] == ""
    assert deltas[1]["delta"]["signature"] == reasoning["signature"]


async def test_named_items_of_earlier_answers_are_one_row() -> None:
    """The AI SDK names items by their ids unless it is told `store: false`."""
    async with episode_of(Model(("reasoned", "calls", "text"))) as episode:
        agent = ResponsesAgent()
        agent.user("Begin.")
        for _ in range(6):
            output = (await turn(episode, agent))["output"]
            agent.said[-len(output) :] = [{"type": "item_reference", "id": item["id"]} for item in output]
            agent.answer("Go on.")
        assert [one.continues for one in episode.trajectory().turns] == [None] * 6
        agent.said.append({"type": "item_reference", "id": "msg_other"})
        with pytest.raises(RequestRefused, match="msg_other"):
            await turn(episode, agent)


async def test_message_with_every_field_of_the_type_is_a_message() -> None:
    async with episode_of(Model(("reasoned", "text"))) as episode:
        agent = ChatAgent()
        agent.user("Begin.")
        for _ in range(4):
            await turn(episode, agent)
            agent.answer("Go on.")
            nothing = dict.fromkeys(("tool_calls", "tool_call_id", "function_call", "audio", "refusal", "name"))
            agent.said[:] = [{**nothing, **message} for message in agent.said]
        assert [one.continues for one in episode.trajectory().turns] == [None] * 4


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (CHAT, {"messages": [USER], "stream_options": {"include_usage": None}}),
        (RESPONSES, {"input": [USER], "text": {"format": None}}),
        (ANTHROPIC, {"messages": [USER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": None}}),
    ],
)
def test_null_in_a_field_is_no_value(api: ClientApi, fields: dict[str, Any]) -> None:
    plain = {name: value for name, value in fields.items() if name in ("messages", "input")}
    assert read(api, **fields).messages == read(api, **plain).messages
    assert read(api, **fields).allows_parallel


def test_refusal_in_a_history_is_text() -> None:
    request = read(CHAT, messages=[USER, {"role": "assistant", "content": None, "refusal": "No."}, USER])
    assert request.messages[1].text == "No."


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [USER, {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}}, USER]},
        {"messages": [USER, {"role": "assistant", "audio": {"id": "audio_1"}}, USER]},
        {"messages": [USER], "modalities": ["text", "audio"]},
    ],
)
def test_field_that_would_be_lost_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused, match=r"`(function_call|audio|modalities)`"):
        read(CHAT, **fields)
