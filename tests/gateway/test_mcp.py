"""The environment's tools over MCP: the official client, raw messages, and what no text may hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from orl_core.errors import SessionError
from orl_core.messages import FailureKind, ImageBlock, TextBlock, ToolCall, ToolResult, ToolSpec
from orl_core.trajectory import StopReason
from orl_gateway import Episode, Gateway
from orl_gateway.dialects.exchange import RequestRefused
from orl_testing import ScriptedSession

from tests.gateway.agents import ChatAgent, Model, episode_of, turn

LOOK = ToolSpec(
    name="look", description="Look.", parameters={"type": "object", "properties": {"at": {"type": "integer"}}}
)


def says(text: str, **fields: Any) -> ToolResult:
    return ToolResult(name="look", content=(TextBlock(text=text),), **fields)


@asynccontextmanager
async def served(*results: ToolResult | Exception, **limits: Any) -> AsyncGenerator[tuple[Episode, str]]:
    session = ScriptedSession(results, tools=(LOOK,))
    async with Gateway() as gateway, episode_of(Model(("call",)), session, **limits) as episode:
        yield episode, f"{gateway.base_url(gateway.add(episode))}/mcp"


@asynccontextmanager
async def client(url: str) -> AsyncGenerator[ClientSession]:
    async with streamable_http_client(url) as (reading, writing, _), ClientSession(reading, writing) as session:
        await session.initialize()
        yield session


async def send(url: str, message: object, **headers: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(url, json=message, headers=headers) as answer:
        return answer.status, await answer.text()


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def code_of(url: str, message: object) -> int:
    status, text = await send(url, message)
    assert status == 200
    return json.loads(text)["error"]["code"]


async def test_client_lists_and_calls_the_tools() -> None:
    async with served(says("A wall.", reward=0.25), says("A door.")) as (episode, url):
        async with client(url) as session:
            (tool,) = (await session.list_tools()).tools
            assert (tool.name, tool.description, tool.inputSchema) == ("look", "Look.", LOOK.parameters)
            await session.send_ping()
            agent = ChatAgent()
            agent.user("Begin.")
            await turn(episode, agent)
            answer = await session.call_tool("look", {"at": 3})
            assert (answer.content[0].model_dump(exclude_none=True), answer.isError) == (
                {"type": "text", "text": "A wall."},
                False,
            )
        assert episode.trajectory().turns[0].results[0].reward == 0.25


async def test_schema_keeps_its_order() -> None:
    schemas = [{"properties": {}, "type": "object"}, {"title": "Wait", "properties": {}}]
    tools = tuple(ToolSpec(name=f"tool_{at}", parameters=schema) for at, schema in enumerate(schemas))
    async with Gateway() as gateway, episode_of(Model(), ScriptedSession(tools=tools)) as episode:
        _, text = await send(f"{gateway.base_url(gateway.add(episode))}/mcp", request("tools/list"))
    listed = [tool["inputSchema"] for tool in json.loads(text)["result"]["tools"]]
    assert [[*schema] for schema in listed] == [["properties", "type"], ["type", "title", "properties"]]


async def test_wrong_call_is_a_result_that_the_model_reads() -> None:
    async with served() as (episode, url):
        agent = ChatAgent()
        agent.user("Begin.")
        await turn(episode, agent)
        async with client(url) as session:
            assert (await session.call_tool("look", {"at": "left"})).isError
            assert (await session.call_tool("fly", {})).isError
        kept = [result.failure for result in episode.trajectory().turns[0].results]
    assert kept == [FailureKind.INVALID_ARGUMENTS, FailureKind.UNKNOWN_TOOL]


async def test_fault_of_the_environment_ends_the_episode_and_is_not_told() -> None:
    async with served(SessionError("gone with planted-secret")) as (episode, url):
        async with client(url) as session:
            with pytest.raises(McpError) as failed:
                await session.call_tool("look", {})
        assert "planted" not in str(failed.value)
        assert episode.trajectory().stop_reason is StopReason.ERROR


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ([request("ping")], -32600),
        ({"id": 1, "method": "ping"}, -32600),
        ({**request("ping"), "id": 1.5}, -32600),
        (request("resources/list"), -32601),
        ({**request("ping"), "params": []}, -32602),
        (request("tools/call", arguments={}), -32602),
        (request("tools/call", name="look", arguments=[]), -32602),
    ],
)
async def test_message_that_is_wrong_is_an_error(message: object, code: int) -> None:
    async with served() as (_, url):
        assert await code_of(url, message) == code


async def test_protocol_of_http() -> None:
    async with served() as (_, url), aiohttp.ClientSession() as http:
        async with http.post(url, data=b"{") as answer:
            assert (await answer.json())["error"]["code"] == -32700
        async with http.get(url) as answer:
            assert answer.status == 405
        assert await send(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}) == (202, "")
        assert (await send(url, request("ping"), Origin="http://evil.example"))[0] == 403
        assert (await send(url, request("ping"), Origin="http://localhost:3000"))[0] == 200
        wished = request("initialize", protocolVersion="2025-06-18")
        assert json.loads((await send(url, wished))[1])["result"]["protocolVersion"] == "2025-06-18"
        unknown = request("initialize", protocolVersion="1999-01-01")
        assert json.loads((await send(url, unknown))[1])["result"]["protocolVersion"] == "2025-11-25"


async def test_long_result_is_cut_for_the_agent_and_kept_whole() -> None:
    long = "wall " * 400
    async with served(says(long), tool_result_tokens=20) as (episode, url):
        agent = ChatAgent()
        agent.user("Begin.")
        await turn(episode, agent)
        text = (await send(url, request("tools/call", name="look")))[1]
        assert 0 < len(json.loads(text)["result"]["content"][0]["text"]) < len(long)
        assert episode.trajectory().turns[0].results[0].content == (TextBlock(text=long),)


async def test_image_is_an_image() -> None:
    image = ToolResult(name="look", content=(ImageBlock(data="AAAA", mime_type="image/png"),))
    async with served(image) as (_, url), client(url) as session:
        (block,) = (await session.call_tool("look", {})).content
    assert (block.type, block.mimeType) == ("image", "image/png")  # pyright: ignore[reportAttributeAccessIssue]


class Slow(ScriptedSession):
    """A session whose call ends when it is told to."""

    def __init__(self) -> None:
        super().__init__([says("Late.", reward=0.5), says("Later.")], tools=(LOOK,))
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    async def call(self, call: ToolCall) -> ToolResult:
        self.begun.set()
        await self.free.wait()
        return await super().call(call)


async def test_call_that_nobody_waits_for_keeps_its_result() -> None:
    session = Slow()
    async with episode_of(Model(("call",)), session) as episode:
        agent = ChatAgent()
        agent.user("Begin.")
        await turn(episode, agent)
        waiting = asyncio.create_task(episode.tools.call(ToolCall(name="look")))
        await session.begun.wait()
        waiting.cancel()
        await asyncio.wait((waiting,))
        session.free.set()
        await episode.tools.call(ToolCall(name="look"))  # calls run one by one: the first has ended
        assert episode.trajectory().rewards == (0.5,)


async def test_closing_ends_the_calls_under_way() -> None:
    session = Slow()
    async with episode_of(Model(), session) as episode:
        waiting = asyncio.create_task(episode.tools.call(ToolCall(name="look")))
        await session.begun.wait()
    with pytest.raises(RequestRefused):  # who waits was not cancelled: a `CancelledError` would end its connection
        await waiting
    assert session.closed == 1
