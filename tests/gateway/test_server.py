"""The gateway on loopback: the official SDKs, raw requests, tokens, retries, keepalives and faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from orl_core.errors import EngineError
from orl_core.trajectory import Generation
from orl_gateway import Episode, Gateway
from orl_gateway.api import gateway
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.exchange import Reply
from orl_gateway.episode.work import Work
from orl_testing import ScriptedEngine

from tests.gateway.agents import LOOK, Model, episode_of, generation_of

CHAT_TOOLS: Any = [{"type": "function", "function": LOOK}]
USER: Any = {"role": "user", "content": "Begin."}
HELLO = {"model": "m", "messages": [USER]}
SAME, OTHER = (CHAT.read(json.dumps({**HELLO, "model": name}).encode()) for name in "ab")


class Served:
    """A gateway with one episode, and clients of it."""

    def __init__(self, gateway: Gateway, episode: Episode) -> None:
        self.gateway = gateway
        self.episode = episode
        self.token = gateway.add(episode)
        self.url = gateway.base_url(self.token)

    @asynccontextmanager
    async def openai(self, **settings: Any) -> AsyncGenerator[AsyncOpenAI]:
        given = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **settings}
        async with AsyncOpenAI(**given) as client:
            yield client

    @asynccontextmanager
    async def anthropic(self, **settings: Any) -> AsyncGenerator[AsyncAnthropic]:
        async with AsyncAnthropic(**{"base_url": self.url, "api_key": "none", "max_retries": 0, **settings}) as client:
            yield client


@asynccontextmanager
async def served(engine: Any, **settings: Any) -> AsyncGenerator[Served]:
    async with Gateway(**settings) as gateway, episode_of(engine) as episode:
        yield Served(gateway, episode)


def continued(episode: Episode) -> list[int | None]:
    return [turn.continues for turn in episode.trajectory().turns]


Said = list[Any]  # the conversation, in the form of one API


async def chat(play: Served, said: Said, streams: bool) -> str:
    async with play.openai() as client:
        asked: Any = {"model": "m", "messages": said, "tools": CHAT_TOOLS}
        if streams:
            async with client.chat.completions.stream(**asked) as stream:
                message = (await stream.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
    calls = message.tool_calls or ()
    said += [message.to_dict(), *({"role": "tool", "tool_call_id": call.id, "content": "A wall."} for call in calls)]
    return message.content or ""


async def responses(play: Served, said: Said, streams: bool) -> str:
    async with play.openai() as client:
        asked: Any = {"model": "m", "input": said, "tools": [{"type": "function", **LOOK}]}
        if streams:
            async with client.responses.stream(**asked) as stream:
                answer = await stream.get_final_response()
        else:
            answer = await client.responses.create(**asked)
    calls = [item for item in answer.output if item.type == "function_call"]
    said += [item.to_dict() for item in answer.output]
    said += [{"type": "function_call_output", "call_id": call.call_id, "output": "A wall."} for call in calls]
    return answer.output_text


async def messages(play: Served, said: Said, streams: bool) -> str:
    async with play.anthropic() as client:
        tool = {"name": "look", "description": "Look.", "input_schema": LOOK["parameters"]}
        asked: Any = {"model": "m", "messages": said, "tools": [tool]}
        counted = await client.messages.count_tokens(**asked)
        if streams:
            async with client.messages.stream(max_tokens=90, **asked) as stream:
                answer = await stream.get_final_message()
        else:
            answer = await client.messages.create(max_tokens=90, **asked)
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == counted.input_tokens
    calls = [block.id for block in answer.content if block.type == "tool_use"]
    said.append({"role": "assistant", "content": [block.to_dict() for block in answer.content]})
    results = [{"type": "tool_result", "tool_use_id": call, "content": "A wall."} for call in calls]
    said += [{"role": "user", "content": results}] if results else []
    return "".join(block.text for block in answer.content if block.type == "text")


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("sdk", [chat, responses, messages])
async def test_conversation_of_an_sdk_is_one_row(sdk: Callable[..., Awaitable[str]], streams: bool) -> None:
    async with served(Model(("reasoned", "calls", "text"))) as play:
        said: Said = [USER]
        assert [await sdk(play, said, streams) for _ in range(3)][-1] == "I say the number 2."
        assert continued(play.episode) == [None] * 3


async def test_models_are_listed_for_both_sdks() -> None:
    async with served(Model()) as play, play.openai() as ours, play.anthropic() as theirs:
        assert [model.id async for model in ours.models.list()] == ["orl"]
        assert [model.id async for model in theirs.models.list()] == ["orl"]
        assert play.gateway.url.startswith("http://127.0.0.1:"), "nobody but this machine reaches it"


async def test_token_is_the_key_of_clients_without_a_path() -> None:
    async with served(Model()) as play:
        url = play.gateway.url
        async with play.openai(base_url=f"{url}/v1", api_key=play.token) as client:
            await client.chat.completions.create(model="m", messages=[USER])
        async with play.anthropic(base_url=url, api_key=play.token) as client:
            await client.messages.create(model="m", max_tokens=90, messages=[USER])
        assert len(play.episode.trajectory().turns) == 2


async def test_request_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "LARGEST_REQUEST", 1 << 20)
    async with served(Model(("text",))) as play, aiohttp.ClientSession() as http:
        for size, status in (((1 << 20) - 100, 200), (1 << 20, 413)):
            body = BytesIO(json.dumps({**HELLO, "user": "x" * size}).encode())
            async with http.post(f"{play.url}/v1/chat/completions", data=body) as answer:
                assert answer.status == status


async def test_engine_fault_is_a_server_error_that_is_not_retried() -> None:
    engine = ScriptedEngine([EngineError("the engine is gone"), generation_of("Well.")])
    async with served(engine) as play, play.openai(max_retries=3) as client, play.anthropic(max_retries=3) as other:
        with pytest.raises(openai.InternalServerError, match="gone"):
            await client.chat.completions.create(model="m", messages=[USER])
        with pytest.raises(anthropic.InternalServerError, match="gone"):
            await other.messages.create(model="m", max_tokens=90, messages=[USER])
        assert play.episode.trajectory().error == "the engine is gone"
        assert engine.requests == []


class Waiting:
    """An engine that answers when it is let go."""

    def __init__(self, answer: Generation | Exception) -> None:
        self.answer = answer
        self.asked = 0
        self.begun = asyncio.Event()
        self.free = asyncio.Event()

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        self.asked += 1
        self.begun.set()
        await self.free.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("path", "body", "keepalive", "last"),
    [
        ("chat/completions", {**HELLO, "stream": True}, b": keepalive", b"data: [DONE]"),
        ("responses", {"model": "m", "input": "Hi.", "stream": True}, b": keepalive", b"response.completed"),
        ("messages", {**HELLO, "max_tokens": 9, "stream": True}, b"event: ping", b"message_stop"),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
async def test_stream_is_kept_alive_until_the_answer(
    path: str, body: dict[str, Any], keepalive: bytes, last: bytes, fails: bool
) -> None:
    engine = Waiting(EngineError("the engine is gone") if fails else generation_of("Well."))
    async with served(engine, keepalive=0.001) as play, aiohttp.ClientSession() as http:
        answer = await http.post(f"{play.url}/v1/{path}", json=body)
        assert (await answer.content.readline()).strip() == keepalive
        engine.free.set()
        rest = await answer.content.read()
    assert (last in rest) is not fails
    assert (b"the engine is gone" in rest) is fails
    assert bool(play.episode.trajectory().error) is fails


async def test_client_that_left_gets_the_same_answer() -> None:
    engine = Waiting(generation_of("Well."))
    async with served(engine) as play, aiohttp.ClientSession() as http:
        url = f"{play.url}/v1/chat/completions"
        asking = asyncio.create_task(http.post(url, json=HELLO))
        await engine.begun.wait()
        asking.cancel()
        await asyncio.wait((asking,))
        again = asyncio.create_task(http.post(url, json=HELLO, headers={"x-stainless-retry-count": "1"}))
        engine.free.set()
        answer = await (await again).json()
        assert answer["choices"][0]["message"]["content"] == "Well."
        assert engine.asked == 1
        assert len(play.episode.trajectory().turns) == 1


async def test_client_that_leaves_a_stream_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def lost(*given: Any) -> None:
        raise aiohttp.ClientConnectionResetError

    async with served(Model(("text",))) as play, aiohttp.ClientSession() as http:
        url, body = f"{play.url}/v1/chat/completions", {**HELLO, "stream": True}
        with monkeypatch.context() as patched:
            patched.setattr(web.StreamResponse, "write", lost)
            with pytest.raises(aiohttp.ClientError):
                await (await http.post(url, json=body)).read()
        assert b"I say the number 0." in await (await http.post(url, json=body)).read()
        assert len(play.episode.trajectory().turns) == 1
    assert caplog.records == []


def replied(name: str, calls: list[str]) -> Callable[[], Any]:
    async def ask() -> Reply:
        calls.append(name)
        await asyncio.sleep(0)
        return Reply(name=name)

    return ask


async def test_retries_join_and_replay() -> None:
    work, calls = Work(), list[str]()
    async with (
        work.answer(SAME, replied("a", calls), retried=False) as first,
        work.answer(SAME, replied("b", calls), retried=True) as second,
    ):
        assert (await first).name == (await second).name == "a"
    async with work.answer(SAME, replied("c", calls), retried=True) as third:
        assert (await third).name == "a"
    async with work.answer(SAME, replied("d", calls), retried=False) as fourth:
        assert (await fourth).name == "d"
    async with work.answer(OTHER, replied("e", calls), retried=True) as other:
        assert (await other).name == "e"
    assert calls == ["a", "d", "e"]
    await work.close()


async def test_answer_that_nobody_got_is_given_to_who_asks_again() -> None:
    work, calls = Work(), list[str]()
    with pytest.raises(ConnectionResetError):
        async with work.answer(SAME, replied("a", calls), retried=False):
            raise ConnectionResetError
    async with work.answer(SAME, replied("b", calls), retried=False) as answer:
        assert (await answer).name == "a"
    await work.close()


async def test_failed_answer_is_asked_for_again() -> None:
    work, calls = Work(), list[str]()

    async def fails() -> Reply:
        raise EngineError("gone")

    with pytest.raises(EngineError):
        async with work.answer(SAME, fails, retried=False) as answer:
            await answer
    async with work.answer(SAME, replied("b", calls), retried=True) as answer:
        assert (await answer).name == "b"
    await work.close()


async def test_closing_ends_what_is_asked_for() -> None:
    engine = Waiting(generation_of("Well."))
    async with served(engine) as play, aiohttp.ClientSession() as http:
        asking = asyncio.create_task(http.post(f"{play.url}/v1/chat/completions", json=HELLO))
        await engine.begun.wait()
        await play.episode.work.close()
        answer = await asking
        assert answer.status == 400
    assert play.episode.trajectory().turns == ()
