"""The gateway alone in front of SGLang's wire: sessions of the real SDKs, what is recorded, and who may do what."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from orl_core.config import decode_config
from orl_core.datum import to_data
from orl_core.errors import OrlError, RunAborted
from orl_core.trajectory import StopReason, Trajectory
from orl_gateway.api import recorder as recorder_module
from orl_gateway.api.recorder import Recorder, recording
from orl_gateway.dialects.exchange import RequestRefused
from orl_rollout.episodes.journal import Entry, read_journal
from orl_rollout.run_folder.contract import GatewayAddress
from orl_rollout.runtime import stack
from orl_testing import SglangServer, VllmServer

from tests.gateway.agents import LOOK, call_text, ids_of
from tests.kit.tokenizers import build, open_once, template

KEY = "planted-key-of-the-gateway"
USER: Any = {"role": "user", "content": "Go."}
TOOLS: Any = [{"type": "function", "function": LOOK}]


@pytest.fixture(autouse=True)
def certified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certify the checkpoint once for all tests."""
    for name in ("open_tokenizer", "open_renderer"):
        monkeypatch.setattr(stack, name, open_once(name))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    build(template("qwen3")).save_pretrained(folder)
    return str(folder)


class Policy:
    """Looks once, then talks; records what it was shown, and what it said."""

    def __init__(self) -> None:
        self.said: list[tuple[list[int], Sequence[int], Mapping[str, Any]]] = []

    def __call__(self, ids: list[int], sampling: dict[str, Any]) -> Sequence[int]:
        text = call_text("look", at=1) if len(self.said) % 2 == 0 else f"I saw {len(self.said)}."
        self.said.append((ids, ids_of(text), sampling))
        return ids_of(text)


@asynccontextmanager
async def recorded(
    model: str, folder: Path, policy: Any = None, server: type[SglangServer] = SglangServer, **fields: Any
) -> AsyncGenerator[Recorder]:
    tree = {"environments": {"orl/gateway": {}}, "trainer": {"model": model}, "rollout": {"upload": False}, **fields}
    async with server(policy or Policy()) as engine:
        address = GatewayAddress(engine=engine.url, key=KEY)
        async with recording(decode_config(tree, "test"), folder, address) as recorder:
            yield recorder


def by_session(folder: Path) -> dict[str, Entry]:
    return {entry.key: entry for entry in read_journal(folder)}


async def chats(url: str, key: str) -> str:
    """Two turns with a tool of the agent's own."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        messages: list[Any] = [USER]
        for _ in range(2):
            answer = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
            message = answer.choices[0].message
            messages.append(message)
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "A wall."} for call in message.tool_calls or ()
            ]
    return messages[-1].content


@pytest.mark.parametrize("server", [SglangServer, VllmServer])
async def test_openai_sdk_is_recorded_exactly(model: str, tmp_path: Path, server: type[SglangServer]) -> None:
    policy = Policy()
    async with recorded(model, tmp_path, policy, server) as recorder:
        assert (await chats(recorder.gateway.url, KEY)).startswith("I saw")
        summary = await recorder.end(KEY, reward=0.75, id_="session-1")
        assert (summary["reward"], summary["ending"]) == (0.75, "finished")
        (entry,) = read_journal(tmp_path)  # on disk while the gateway runs
    (datum,) = to_data(entry.trajectory, reward=entry.reward)
    shown, said, sampling = policy.said[1]
    assert (*datum.prompt, *datum.response) == (*shown, *said)
    assert sampling["temperature"] == 1.0
    assert entry.reward == 0.75


async def test_anthropic_sdk_has_a_session_of_its_own(model: str, tmp_path: Path) -> None:
    async with recorded(model, tmp_path) as recorder, aiohttp.ClientSession() as http:
        begun = await http.post(f"{recorder.gateway.url}/sessions", headers={"Authorization": f"Bearer {KEY}"})
        session = await begun.json()
        async with AsyncAnthropic(
            base_url=session["anthropic_base_url"], api_key=session["api_key"], max_retries=0
        ) as client:
            await client.messages.create(model="m", max_tokens=90, messages=[USER])
        ended = await http.delete(session["anthropic_base_url"], json={"reward": 0.5})
        told = await ended.json()
    assert (told["turns"], told["rows"], told["reward"], told["error"]) == (1, 1, 0.5, "")
    assert {key: entry.reward for key, entry in by_session(tmp_path).items()} == {told["id"]: 0.5}


async def test_repeated_delete_ends_one_session(model: str, tmp_path: Path) -> None:
    """A client that got no answer asks again. It must not end the session that the next agent has by then."""
    async with recorded(model, tmp_path) as recorder, aiohttp.ClientSession() as http:
        url = f"{recorder.gateway.url}/s/{KEY}"
        await chats(recorder.gateway.url, KEY)
        assert (await http.delete(url, json={"reward": 1.0})).status == 400, "the key alone names no session"
        id_ = (await (await http.get(url)).json())["id"]
        first = await (await http.delete(url, params={"session": id_}, json={"reward": 1.0})).json()
        await chats(recorder.gateway.url, KEY)
        again = await (await http.delete(url, params={"session": id_}, json={"reward": 1.0})).json()
        assert first == again
        assert (await http.delete(url, params={"session": "session-99"})).status == 400
        other = (await (await http.get(url)).json())["id"]
        assert other != id_
        token = await recorder.begin()
        ended = [await (await http.delete(f"{recorder.gateway.url}/s/{token}")).json() for _ in range(2)]
        assert ended[0] == ended[1]
        assert (await http.get(f"{recorder.gateway.url}/s/{token}")).status == 401
    assert {key: entry.reward for key, entry in by_session(tmp_path).items()} == {id_: 1.0, other: 0.0}


INSIDE, COMES_BACK = threading.Semaphore(0), threading.Event()


def hanging_reward(trajectory: Trajectory) -> float:
    """A reward function that waits for a judge that never answers."""
    INSIDE.release()
    COMES_BACK.wait(60)
    return 0.25


def exiting_reward(trajectory: Trajectory) -> float:
    """A reward function that parses arguments, say."""
    sys.exit(2)


@pytest.fixture
def hung() -> Generator[None]:
    COMES_BACK.clear()
    yield
    COMES_BACK.set()


@pytest.mark.usefixtures("hung")
async def test_hanging_reward_function_stops_no_session(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sessions are judged at once, and are on disk as they were sampled; one that hangs is so for ever."""
    monkeypatch.setattr(recorder_module, "ENDING_SECONDS", 0.1)
    async with recorded(model, tmp_path, reward=f"{__name__}:hanging_reward") as recorder:

        async def end() -> asyncio.Task[dict[str, Any]]:
            token = await recorder.begin()
            await chats(recorder.gateway.url, token)
            return asyncio.ensure_future(recorder.end(token))

        ends = [await end() for _ in range(3)]
        for _ in ends:
            assert await asyncio.to_thread(INSIDE.acquire, timeout=60)
        assert [len(entry.trajectory.turns) for entry in read_journal(tmp_path)] == [2] * 3
        COMES_BACK.set()
        assert [summary["reward"] for summary in await asyncio.gather(*ends)] == [0.25] * 3
        COMES_BACK.clear()
        late = await end()
        assert await asyncio.to_thread(INSIDE.acquire, timeout=60)
    with pytest.raises(asyncio.CancelledError):
        await late
    endings = [(entry.reward, entry.trajectory.ending) for entry in read_journal(tmp_path)]
    assert endings == [(0.25, "finished")] * 3 + [(0.0, "aborted")]


@pytest.mark.usefixtures("hung")
async def test_reward_functions_that_never_end_end_the_gateway(model: str, tmp_path: Path) -> None:
    limits = {"reward_timeout": 0.2, "reward_concurrency": 2, "upload": False}
    async with recorded(model, tmp_path, reward=f"{__name__}:hanging_reward", rollout=limits) as recorder:
        tokens = [await recorder.begin() for _ in range(2)]
        for token in tokens:
            await chats(recorder.gateway.url, token)
        summary = await recorder.end(tokens[0])
        assert (summary["ending"], summary["turns"]) == ("error", 2)
        assert not recorder.failed.done()
        with pytest.raises(RequestRefused):
            await recorder.end(tokens[1])
        with pytest.raises(RunAborted, match="hanging_reward"):
            await recorder.failed
    assert [one.trajectory.stop_reason for one in read_journal(tmp_path)] == [StopReason.ERROR, StopReason.ABORTED]


async def test_reward_function_that_exits_is_an_error(model: str, tmp_path: Path) -> None:
    async with recorded(model, tmp_path, reward=f"{__name__}:exiting_reward") as recorder:
        for _ in range(2):
            token = await recorder.begin()
            await chats(recorder.gateway.url, token)
            summary = await recorder.end(token)
            assert summary["ending"] == "error"
            assert "sys.exit" in summary["error"]


async def test_open_sessions_are_recorded_at_the_end(model: str, tmp_path: Path) -> None:
    async with recorded(model, tmp_path) as recorder:
        await chats(recorder.gateway.url, KEY)
        await chats(recorder.gateway.url, await recorder.begin())
        await recorder.begin()  # nothing happens in it: nothing is recorded
    entries = by_session(tmp_path)
    assert [len(entry.trajectory.turns) for entry in entries.values()] == [2, 2]
    assert all(entry.trajectory.trainable for entry in entries.values())


async def test_session_ends_at_its_deadline(model: str, tmp_path: Path) -> None:
    short = {"call_timeout": 2.0, "turn_timeout": 2.0, "rollout_timeout": 2.0, "upload": False}
    async with recorded(model, tmp_path, rollout=short) as recorder, aiohttp.ClientSession() as http:
        token = await recorder.begin()
        await chats(recorder.gateway.url, token)
        url = f"{recorder.gateway.url}/s/{token}"
        while (await http.get(url)).status == 200:  # noqa: ASYNC110 - the gateway tells nobody
            await asyncio.sleep(0.05)
    assert [entry.trajectory.stop_reason for entry in read_journal(tmp_path)] == [StopReason.TIMEOUT]


async def test_token_opens_its_own_session_alone(model: str, tmp_path: Path) -> None:
    async with recorded(model, tmp_path) as recorder, aiohttp.ClientSession() as http:
        url = recorder.gateway.url
        one, other = await recorder.begin(), await recorder.begin()
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": one}):
            assert (await http.post(f"{url}/sessions", headers=headers)).status == 401
        await chats(url, one)
        await recorder.end(one)
        with pytest.raises(openai.AuthenticationError):
            await chats(url, one)
        async with AsyncAnthropic(base_url=url, api_key="wrong", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                await client.messages.create(model="m", max_tokens=9, messages=[USER])
        for body in (b"", b"{"):
            assert (await http.delete(f"{url}/s/wrong", data=body)).status == 401
        assert (await http.delete(f"{url}/s/{other}", json={"reward": "much"})).status == 400
        assert (await http.delete(f"{url}/s/{other}", data=b'{"reward": NaN}')).status == 400
        assert (await http.delete(f"{url}/s/{other}")).status == 200


async def test_key_of_odd_bytes_begins_no_session(model: str, tmp_path: Path) -> None:
    async with recorded(model, tmp_path) as recorder:
        address = urlsplit(recorder.gateway.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(b"POST /sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nContent-Length: 0\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_session_without_a_disk_ends_the_gateway(model: str, tmp_path: Path) -> None:
    async with recorded(model, tmp_path) as recorder:
        await chats(recorder.gateway.url, KEY)
        recorder.journal.close()
        with pytest.raises(OrlError):
            await recorder.end(KEY, id_="session-1")
        with pytest.raises(OrlError, match="recorded"):
            await recorder.failed
