"""A crowd of agents at one gateway, each with one habit of agents in the world, and an engine that counts its ids.

The agents play through `AgentPlayer`, over HTTP on loopback. The engine notes what it returned by the rollout's name.
What an engine samples for a request that is cancelled is returned to nobody: it does not count.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct, structs
from orl_core.datum import to_data
from orl_core.limits import Limits
from orl_core.messages import TextBlock, ToolResult, ToolSpec
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory
from orl_gateway import AgentEpisode
from orl_gateway.agent.agent_player import AgentPlayer
from orl_testing import ScriptedSession

from tests.gateway.agents import LOOK, RENDERER, TASK, call_text, generation_of

LIMITS = Limits(max_turns=12, context_tokens=1 << 15, rollout_tokens=1 << 18, rollout_timeout=60.0)
DEADLINE_SECONDS = 0.015  # for each agent of the crowd
TOOLS = [{"type": "function", "function": LOOK}]
RESULTS = [ToolResult(name="look", content=(TextBlock(text=f"Door {at}."),)) for at in range(100)]
RETRY = {"x-stainless-retry-count": "1"}


class CountingEngine:
    """An engine whose every answer is another one, after a while by chance. `returned` is by the rollout's name."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.returned: defaultdict[str, list[tuple[tuple[int, ...], Generation]]] = defaultdict(list)
        self.cancelled = 0
        self._chance = random.Random(seed)
        self._seconds = seconds
        self._answers = 0

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        self._answers += 1
        number = self._answers
        shown = tuple(ids)
        try:
            await asyncio.sleep(self._seconds * self._chance.random())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        generation = generation_of(f"<think>\nThought {number}.\n</think>\n\n{call_text('look', at=number)}")
        self.returned[key].append((shown, generation))
        return generation


class Client:
    """The HTTP client of one agent, with its conversation.

    `strays` are its tasks that may outlive the episode, `writers` its connections, which a cancelled agent leaves open.
    """

    def __init__(self, episode: AgentEpisode, http: aiohttp.ClientSession, number: int) -> None:
        self.episode = episode
        self.strays: list[asyncio.Task[Any]] = [task for task in (asyncio.current_task(),) if task]
        self.writers: list[asyncio.StreamWriter] = []
        self.chance = random.Random(number)
        self.http = http
        self.said: list[dict[str, Any]] = [{"role": "user", "content": episode.prompt}]

    @property
    def url(self) -> str:
        return f"{self.episode.base_url}/chat/completions"

    def body(self, **fields: Any) -> bytes:
        return json.dumps({"model": "m", "messages": self.said, "tools": TOOLS, **fields}).encode()

    async def ask(self, **headers: str) -> dict[str, Any]:
        """Return the model's next message; a refusal ends the agent."""
        async with self.http.post(self.url, data=self.body(), headers=headers) as response:
            answer = await response.json()
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return answer["choices"][0]["message"]

    async def act(self, message: dict[str, Any]) -> None:
        """Make the calls of a message, and append their results."""
        self.said.append(message)
        for call in message.get("tool_calls") or ():
            text = await self.episode.call("look", **json.loads(call["function"]["arguments"]))
            self.said.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    async def play(self, turns: int) -> None:
        for _ in range(turns):
            if self.episode.over():
                return
            await self.act(await self.ask())

    def leave(self, work: Coroutine[Any, Any, object]) -> None:
        self.strays.append(asyncio.ensure_future(_quietly(work)))

    async def open_socket(self, sent: bytes, promised: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, and send a request of `promised` bytes, of which `sent` are there."""
        url = urlsplit(self.url)
        head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {promised}\r\n\r\n"
        reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=256)
        self.writers.append(writer)
        writer.write(head.encode() + sent)
        return reader, writer


async def _quietly(work: Awaitable[object]) -> None:
    with suppress(Exception):
        await work


async def normal(client: Client) -> None:
    """Play to the end of the episode."""
    await client.play(LIMITS.max_turns)


async def late_calls(client: Client) -> None:
    """End while requests of the model and calls of tools run, and send more afterwards."""
    await client.play(2)

    async def late() -> None:
        await asyncio.sleep(client.chance.random() / 20)
        await client.play(LIMITS.max_turns)

    for _ in range(3):
        client.leave(client.ask())
        client.leave(client.episode.call("look", at=1))
        client.leave(late())
    await asyncio.sleep(client.chance.random() / 50)


async def half_open_sockets(client: Client) -> None:
    """Send half of a request, play, and send the rest of it after the end; one socket never gets its rest."""
    body = client.body()
    halves = [await client.open_socket(body[:50], len(body)) for _ in range(2)]

    async def rest() -> None:
        await asyncio.sleep(0.1 + client.chance.random() / 5)
        for index, (_, writer) in enumerate(halves):
            if index:
                writer.write(body[50:])
                await asyncio.sleep(0.05)
            writer.close()

    client.leave(rest())
    await client.play(3)


async def slow_readers(client: Client) -> None:
    """Read the streams of answers in small bites, or not to their end."""
    for number in range(4):
        body = client.body(stream=True)
        reader, writer = await client.open_socket(body, len(body))
        try:
            for _ in range(1 if number % 2 else 30):
                if not await reader.read(16):
                    break
                await asyncio.sleep(0.002)
        finally:
            writer.close()
    await client.play(2)


async def crashes(client: Client) -> None:
    """Fail in the middle, while requests run."""
    await client.play(client.chance.randrange(4))
    client.leave(client.ask())
    client.leave(client.ask(**RETRY))
    await asyncio.sleep(client.chance.random() / 50)
    raise RuntimeError("a bug of the agent")


async def cancel_and_retry(client: Client) -> None:
    """Cancel each request after a moment, and send it again, also while the first one runs, until the deadline."""
    while not client.episode.over():
        for attempt in range(client.chance.randrange(1, 6)):
            headers = RETRY if attempt and client.chance.random() < 0.5 else {}
            with suppress(TimeoutError):
                message = await asyncio.wait_for(client.ask(**headers), client.chance.random() / 50)
                await client.act(message)
                break
        else:
            await client.act(await client.ask(**RETRY))


async def ignored_cancellation(client: Client) -> None:
    """Go on asking after every cancellation, for a while."""
    for _ in range(3):
        try:
            await client.play(LIMITS.max_turns + 1)
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            client.leave(client.ask())
            client.leave(client.episode.call("look", at=1))
        except RuntimeError:
            await asyncio.sleep(0.05)


HABITS: tuple[Callable[[Client], Awaitable[None]], ...] = (
    normal,
    late_calls,
    half_open_sockets,
    slow_readers,
    crashes,
    cancel_and_retry,
    ignored_cancellation,
)


class Played(Struct, frozen=True, kw_only=True):
    """One agent's episode: its habit, what happened, its session, and what the engine returned for it."""

    habit: str
    trajectory: Trajectory
    session: ScriptedSession
    returned: list[tuple[tuple[int, ...], Generation]]

    @property
    def lost(self) -> int:
        """Count the returned ids that are in no row. An ERROR loses none: it does not train."""
        if self.trajectory.stop_reason is StopReason.ERROR:
            return 0
        rows = sum(sum(datum.sampled) for datum in to_data(self.trajectory, reward=1.0))
        return sum(len(generation.token_ids) for _, generation in self.returned) - rows


async def play_crowd(agents: int, *, seconds: float = 0.02) -> list[Played]:
    """Play so many agents at once, the habits in turn. An answer of the engine takes `seconds` at most.

    Every other agent of a habit meets its deadline while it plays.
    """
    engine = CountingEngine(agents, seconds)
    clients: list[Client] = []

    async def one(number: int) -> Played:
        habit = HABITS[number % len(HABITS)]

        async def agent(episode: AgentEpisode) -> None:
            clients.append(client := Client(episode, http, number))
            await habit(client)

        session = ScriptedSession(RESULTS, tools=(ToolSpec(name="look"),), pause=0.001)
        deadline = number // len(HABITS) % 2
        limits = structs.replace(LIMITS, rollout_timeout=agents * DEADLINE_SECONDS) if deadline else LIMITS
        job = RolloutSpec(task=TASK, rollout_id=f"r{number}", limits=limits)
        trajectory = await AgentPlayer(agent)(job, session=session, renderer=RENDERER, engine=engine)
        returned = engine.returned[job.rollout_id]
        return Played(habit=habit.__name__, trajectory=trajectory, session=session, returned=returned)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        played = await asyncio.gather(*map(one, range(agents)))
        for client in clients:
            await asyncio.wait(client.strays)
            for writer in client.writers:
                writer.close()
    return played
