"""Servers of all kinds: older ones, ones that move a request, variants, toolsets; and several event loops."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from typing import Any

import pytest
from orl_core.config import decode_config
from orl_core.errors import SessionError
from orl_core.messages import ToolCall, text_of
from orl_core.task import Task
from orl_rollout.edge.http import HttpClient
from orl_rollout.openreward import OpenRewardClient, session, transport
from orl_rollout.openreward.environment import list_served
from orl_rollout.openreward.transport import STARTING_SECONDS
from orl_testing import environments as envs
from orl_testing.proxy import Mishap, MishapKind, Proxy

from tests.kit.answering import Answering
from tests.kit.episodes import Playing, config_of, task_of

UNNAMED = Task(env_name="gallery/Echo", deployment_name="gallery/Echo", task_spec={"number": 1})


class Old(Answering):
    """A server that knows no conversations and no tools of a session."""

    answers = {path: (404, [], b'{"detail": "Not Found"}') for path in ("/messages", "/task_tools")}


async def test_redirect_of_a_path_without_variant_is_followed(monkeypatch: pytest.MonkeyPatch):
    """Without a variant, as on the platform, the SDK's server answers with 308 to its first environment."""
    monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
    with envs.serve(envs.Echo, envs.Terminal, wrap=Old) as served:
        monkeypatch.setenv("OPENREWARD_SESSION_URL", served.url)
        async with OpenRewardClient(decode_config({"environments": {"gallery/Echo": {}}}, "test")) as client:
            session = client.session(UNNAMED)
            opening = await session.open(UNNAMED)
            result = await session.call(ToolCall(name="echo", arguments={"text": "here"}))
            await session.close()
        assert text_of(opening.messages[0].content) == "Task 1."
        assert text_of(result.content) == "here"
        assert served.sessions == 0


@pytest.mark.parametrize("there", ["http://{}", "//{}", "/\t/{}"])
async def test_no_request_follows_a_server_to_another_one(monkeypatch: pytest.MonkeyPatch, there: str):
    monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
    with envs.serve(envs.Echo) as other:

        class Moved(Answering):
            location = f"{there.format(other.url.removeprefix('http://'))}/echo/call"
            answers = {"/call": (308, [(b"location", location.encode())], b"")}

        with envs.serve(envs.Echo, wrap=Moved) as served:
            async with Playing("Echo", served.url, send_api_key=True) as play:
                with pytest.raises(SessionError, match="HTTP 308"):
                    await play.call("finish")
        assert other.requests == []


async def test_a_session_may_be_named_in_json():
    class Plain(Answering):
        answers = {"/create_session": (200, [(b"content-type", b"application/json")], b'{"sid": "of-my-own"}')}

    with envs.serve(envs.Echo, wrap=Plain) as served:
        async with Playing("Echo", served.url) as play:
            assert (await play.call("finish")).finished
        created = [headers for path, headers in served.requests if path == "/create"]
        assert [headers["x-session-id"] for headers in created] == ["of-my-own"]
        assert served.sessions == 0


@pytest.mark.slow
async def test_cut_stream_is_resumed_and_tool_runs_once(gallery: envs.Served):
    ran = envs.Trouble.ran["cut"]
    async with Proxy(gallery.url, [Mishap(kind=MishapKind.CUT, path="/call")]) as way:
        async with Playing("Trouble", way.url, {"name": "cut"}) as play:
            with pytest.raises(SessionError, match="no answer"):
                await play.call("step")
        assert way.count("/call") == 4
    assert envs.Trouble.ran["cut"] - ran == 1


async def opened(url: str) -> None:
    async with Playing("Echo", url):
        pass


@pytest.mark.slow
async def test_a_server_that_is_starting_is_not_asked_without_pause(gallery: envs.Served):
    headers = {"X-Backend-State": "starting", "Retry-After": "0"}
    starting = Mishap(kind=MishapKind.STATUS, path="/create", status=503, headers=headers)
    async with Proxy(gallery.url, [starting]) as way:
        began = time.monotonic()
        opening = asyncio.ensure_future(opened(way.url))
        async with asyncio.timeout(60):
            while way.count("/create") < 3:  # noqa: ASYNC110 - the proxy has no event to wait for
                await asyncio.sleep(0.01)
        assert time.monotonic() - began >= 2 * STARTING_SECONDS - 0.1
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert (way.count("/create_session"), way.count("/delete_session")) == (1, 1)


async def test_a_session_that_is_gone_is_known_at_the_next_call(gallery: envs.Served):
    """The SDK's pings would know it after minutes."""
    async with Playing("Echo", gallery.url) as play, Playing("Echo", gallery.url) as other:
        await other.session.close()
        remote = play.session._remote
        assert remote is not None
        await remote._delete("/delete")
        async with asyncio.timeout(10):
            with pytest.raises(SessionError, match="HTTP 404"):
                await play.call("echo", text="anyone?")


async def test_an_environment_that_never_starts_is_a_fault_and_left(
    gallery: envs.Served, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session, "OPEN_SECONDS", 0.5)
    before, asked = gallery.sessions, gallery.count("/create_session")
    async with OpenRewardClient(config_of("SlowSetup", gallery.url)) as client:
        opened = client.session(task_of("SlowSetup"))
        with pytest.raises(SessionError, match="opening a session of gallery/SlowSetup: no answer in time"):
            await opened.open(task_of("SlowSetup"))
        await opened.close()
    assert gallery.sessions == before
    assert gallery.count("/create_session") - asked == 1


async def test_a_variant_of_the_configuration_is_played(gallery: envs.Served):
    task = Task(env_name="gallery/Other", deployment_name="gallery/Other", task_spec={"number": 1})
    async with OpenRewardClient(config_of("Other", gallery.url, variant="Terminal")) as client:
        session = client.session(task)
        opening = await session.open(task)
        await session.close()
    assert opening.accepts_text_answer


async def test_a_toolset_travels_with_the_creation(gallery: envs.Served):
    with pytest.raises(SessionError, match="HTTP 400: unknown toolset 'hammers'"):
        async with Playing("Echo", gallery.url, toolset="hammers"):
            pass


async def test_momentary_refusal_is_not_missing_listing_support(gallery: envs.Served):
    busy = Mishap(kind=MishapKind.STATUS, path="/list_environments", at=0, status=503)
    async with Proxy(gallery.url, [busy]) as way, OpenRewardClient(config_of("Terminal", way.url)) as client:
        task = Task(env_name="gallery/Terminal", deployment_name="gallery/Terminal", task_spec={"number": 1})
        session = client.session(task)
        assert (await session.open(task)).accepts_text_answer
        await session.close()
        assert way.count("/list_environments") == 2


def test_every_event_loop_has_its_own_client(gallery: envs.Served):
    """Loops of one process, one after another and side by side, each with its client."""
    said: list[str] = []

    async def play() -> None:
        async with Playing("Echo", gallery.url) as playing:
            results = [await playing.call("echo", text=str(number)) for number in range(5)]
            said.extend(text_of(result.content) for result in results)

    asyncio.run(play())
    threads = [threading.Thread(target=asyncio.run, args=(play(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(said) == sorted("01234" * 4)


async def test_closed_client_opens_no_connection(gallery: envs.Served):
    task = task_of("Echo", number=1)
    async with OpenRewardClient(config_of("Echo", gallery.url)) as client:
        session = client.session(task)
    with pytest.raises(SessionError, match="closed"):
        await session.open(task)


async def test_one_client_holds_many_sessions_and_leaves_none(gallery: envs.Served):
    before = gallery.sessions
    async with OpenRewardClient(config_of("Echo", gallery.url)) as client:

        async def play(number: int) -> str:
            task = task_of("Echo", number=number)
            session = client.session(task)
            opening = await session.open(task)
            await session.call(ToolCall(name="finish"))
            await session.close()
            return text_of(opening.messages[0].content)

        assert await asyncio.gather(*map(play, range(16))) == [f"Task {number}." for number in range(16)]
    assert gallery.sessions == before
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.slow
async def test_calls_in_flight_have_no_limit(gallery: envs.Served):
    """More of them than aiohttp has connections by default."""
    begun, tasks = len(envs.Hanging.started), [task_of("Hanging", number=number) for number in range(110)]
    async with OpenRewardClient(config_of("Hanging", gallery.url)) as client, asyncio.timeout(60):
        sessions = [client.session(task) for task in tasks]
        await asyncio.gather(*(session.open(task) for session, task in zip(sessions, tasks, strict=True)))
        calls = [asyncio.create_task(session.call(ToolCall(name="wait"))) for session in sessions]
        while len(envs.Hanging.started) < begun + len(tasks):  # noqa: ASYNC110 - the server is on another thread
            await asyncio.sleep(0.01)
        await asyncio.gather(*(session.close() for session in sessions))
        await asyncio.gather(*calls, return_exceptions=True)


class Crammed(HttpClient):
    """A client in a process that has a descriptor at the third try."""

    tries = 0

    def request(self, *args: Any, **options: Any) -> Any:
        self.tries += 1
        if self.tries < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().request(*args, **options)


async def test_request_waits_for_a_descriptor(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(transport, "STARTING_SECONDS", 0.001)
    with envs.serve(envs.Echo) as served:
        async with Crammed(served.url) as http:
            assert await list_served(transport.Channel(http)) == ("echo",)
    assert http.tries == 3
    assert len([record for record in caplog.records if "ulimit" in record.message]) == 1
