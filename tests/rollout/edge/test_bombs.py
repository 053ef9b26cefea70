"""Answers without an end are errors, and little of them is read; huge texts hold up no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from orl_core.errors import EngineError, OrlError, SessionError, boundary
from orl_core.messages import Message, TextBlock, ToolCall, text_message
from orl_core.trajectory import StopReason
from orl_launcher.doctor.engine import _ask
from orl_rollout.edge.http import NotJson, decode
from orl_rollout.engine_connection import Timeouts
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.client import open_listing
from orl_rollout.sglang.client import SglangEngine
from orl_testing import ScriptedEngine

from tests.kit.episodes import config_of, task_of
from tests.kit.heartbeat import MAX_STOP, heartbeat
from tests.rollout.loop.loop_play import call, play, result, say, session_of

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: %s\r\n%s\r\n"
TEXT = b"x" * (1 << 16)
KINDS = {
    "endless": (OK % (b"application/json", b"") + b'"', TEXT),
    "long": (OK % (b"application/json", b"Content-Length: 99999999999\r\n"), TEXT),
    "events": (OK % (b"text/event-stream", b""), b"event: chunk\ndata: " + TEXT + b"\n\n"),
    "refusal": (b"HTTP/1.1 400 No\r\n\r\n", TEXT),
}


@asynccontextmanager
async def endless(kind: str) -> AsyncGenerator[tuple[str, list[int]]]:
    """A server whose answers have no end; its address, and how much of each was taken."""
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begin, piece = KINDS[kind]
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            taken.append(0)
            writer.write(begin)
            while True:
                writer.write(piece)
                await writer.drain()
                taken[-1] += len(piece)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", taken


async def session(url: str) -> None:
    async with OpenRewardClient(config_of("Echo", url)) as client:
        await client.session(task_of("Echo")).open(task_of("Echo"))


async def listing(url: str) -> None:
    async with OpenRewardClient(config_of("Echo", url)) as client:
        await open_listing(client, "gallery/Echo", "train")


async def engine(url: str) -> None:
    async with SglangEngine(url, context_tokens=32768, timeouts=Timeouts(retry=0.01)) as asked:
        await asked.generate([1, 2, 3], {"max_new_tokens": 4096}, key="a")


async def doctor(url: str) -> None:
    with boundary(EngineError, "doctor"):
        await _ask(url)


CASES = [
    *((session, kind, SessionError) for kind in KINDS),
    (listing, "endless", SessionError),
    (engine, "endless", EngineError),
    (doctor, "endless", EngineError),
]


@pytest.mark.parametrize(("client", "kind", "error"), CASES, ids=lambda value: getattr(value, "__name__", value))
async def test_answer_without_end_is_an_error(
    client: Callable[[str], Awaitable[None]], kind: str, error: type[OrlError]
) -> None:
    async with endless(kind) as (url, taken), asyncio.timeout(60):
        with pytest.raises(error) as caught:
            await client(url)
        assert max(taken) < 100 << 20
    assert len(str(caught.value)) < 20_000


@pytest.mark.parametrize("part", ["content", "reasoning", "arguments"])
async def test_a_prompt_far_over_budget_is_not_tokenized(part: str) -> None:
    text = "Who was in the room? " * 400_000
    messages = {
        "content": (text_message("user", text),),
        "reasoning": (text_message("user", "a"), Message(role="assistant", reasoning=text), text_message("user", "b")),
        "arguments": (
            text_message("user", "a"),
            Message(role="assistant", calls=(ToolCall(name="act", arguments={"x": text}),)),
            Message(role="tool", name="act", content=(TextBlock(text="b"),)),
        ),
    }[part]
    async with heartbeat() as measured:
        trajectory = await play([], session_of(messages=messages))
    assert (trajectory.stop_reason, trajectory.turns, trajectory.error) == (StopReason.MAX_TOKENS, (), "")
    assert measured.longest < MAX_STOP


async def test_a_huge_tool_result_is_cut_before_it_is_tokenized() -> None:
    engine, session = ScriptedEngine([say(call()), say("Done.")]), session_of(result("😀é漢\ud800" * 500_000))
    async with heartbeat() as measured:
        trajectory = await play(engine, session, max_nudges=0)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TURNS, 2)
    assert measured.longest < MAX_STOP


def test_json_that_cannot_be_read_is_refused_as_such() -> None:
    assert decode(b"") is None
    for body in (b"[{]", b"[" * 200_000):
        with pytest.raises(NotJson):
            decode(body)
