"""Answers that no client should read: each is an error of ours, soon, and costs less than 300 MB at its worst."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator

import pytest
from orl_core.errors import EngineError, OrlError, SessionError, boundary
from orl_core.messages import Message, TextBlock, ToolCall, text_message
from orl_core.trajectory import StopReason
from orl_launcher.doctor.engine import _ask
from orl_rollout.edge.http import NotJson, decode
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.listing import open_listing
from orl_rollout.openreward.sdk import prepare_sdk
from orl_testing import ScriptedEngine

from tests.kit.episodes import config_of
from tests.kit.growth import engine, growth_of, session
from tests.kit.heartbeat import MAX_STOP, heartbeat
from tests.rollout.edge.hostile import KINDS, hostile
from tests.rollout.loop.loop_play import call, play, result, say, session_of

MEGABYTES = 300


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    with hostile() as url:
        yield url


async def listing(url: str) -> None:
    async with OpenRewardClient(config_of("Echo", url)) as client:
        await open_listing(client, "gallery/Echo", "train")


async def doctor(url: str) -> None:
    with boundary(EngineError, "doctor"):
        await _ask(url)


CASES = [
    *((session, kind, SessionError) for kind in KINDS),
    *((listing, kind, SessionError) for kind in ("endless", "values")),
    *((engine, kind, EngineError) for kind in ("endless", "deep")),
    (doctor, "endless", EngineError),
]


@pytest.mark.parametrize(
    ("client", "kind", "error"), CASES, ids=[f"{client.__name__}-{kind}" for client, kind, _ in CASES]
)
def test_a_bomb_is_an_error(
    server: str, client: Callable[[str], Awaitable[None]], kind: str, error: type[OrlError]
) -> None:
    async def visit() -> None:
        async with asyncio.timeout(60):
            await client(f"{server}/{kind}")

    def play() -> None:
        with pytest.raises(error) as caught:
            asyncio.run(visit())
        assert len(str(caught.value)) < 20_000

    assert growth_of(play) < MEGABYTES


@pytest.mark.parametrize("kind", ["values", "wide"])
async def test_event_loop_runs_on_while_a_huge_answer_is_read(server: str, kind: str) -> None:
    prepare_sdk()
    async with heartbeat() as measured:
        with pytest.raises(SessionError):
            await session(f"{server}/{kind}")
    assert measured.longest < MAX_STOP


@pytest.mark.parametrize("part", ["content", "reasoning", "arguments"])
def test_a_prompt_far_over_budget_is_not_tokenized(part: str) -> None:
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

    async def visit() -> None:
        async with heartbeat() as measured:
            trajectory = await play(ScriptedEngine([]), session_of(messages=messages))
        assert (trajectory.stop_reason, trajectory.turns, trajectory.error) == (StopReason.MAX_TOKENS, (), "")
        assert measured.longest < MAX_STOP

    assert growth_of(lambda: asyncio.run(visit())) < MEGABYTES


def test_a_huge_tool_result_is_cut_before_it_is_tokenized() -> None:
    script = [say(call()), say("Done.")]

    async def visit() -> None:
        async with heartbeat() as measured:
            trajectory = await play(ScriptedEngine(script), session_of(result("😀é漢\ud800" * 2_000_000)), max_nudges=0)
        assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_TURNS, 2)
        assert measured.longest < MAX_STOP

    assert growth_of(lambda: asyncio.run(visit())) < MEGABYTES


def test_json_that_cannot_be_read_is_refused_as_such() -> None:
    assert decode(b"") is None
    for body in (b"[{]", b"[" * 200_000):
        with pytest.raises(NotJson):
            decode(body)
