"""Sessions on real OpenReward servers over loopback: one test for each thing that `orl_rollout.openreward` promises."""

import asyncio
import base64
import json
import socket
import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import decode_config
from orl_core.errors import ConfigError, SessionError
from orl_core.messages import FailureKind, ImageBlock, ToolCall, text_of
from orl_core.task import Task
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.events import EventReader
from orl_rollout.openreward.wire import result_of
from orl_rollout.testing import environments as envs

KEY = "or-key-0123456789"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    monkeypatch.delenv("OPENREWARD_SESSION_URL", raising=False)


def config_of(name, url, secrets=None, **environment):
    tree = {"environments": {f"gallery/{name}": {"base_url": url, **environment}}, "secrets": secrets or {}}
    return decode_config(tree, "test")


def task_of(name, number=1):
    return Task(
        env_name=f"gallery/{name}",
        deployment_name=f"gallery/{name}",
        environment_name=name.lower(),
        task_spec={"number": number},
    )


class Playing:
    """A client and a session of one environment, opened and closed."""

    def __init__(self, name, url, **settings):
        self.client = OpenRewardClient(config_of(name, url, **settings))
        self.task = task_of(name)

    async def __aenter__(self):
        await self.client.__aenter__()
        self.session = self.client.session(self.task)
        try:
            self.opening = await self.session.open(self.task)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc):
        await self.session.close()
        await self.client.__aexit__(None, None, None)

    async def call(self, name, **arguments):
        return await self.session.call(ToolCall(name=name, arguments=arguments))


async def test_the_opening_holds_messages_and_tools(gallery):
    async with Playing("Echo", gallery.url) as play:
        assert [(m.role, text_of(m.content)) for m in play.opening.messages] == [("user", "Task 1.")]
        echo, finish = play.opening.tools
        assert (echo.name, echo.description) == ("echo", "Say the text again.")
        assert echo.parameters["properties"]["text"]["type"] == "string"
        assert finish.parameters == {"type": "object", "properties": {}}
        assert not play.opening.answers_in_text


async def test_a_task_known_by_its_index_opens(gallery):
    async with OpenRewardClient(config_of("Echo", gallery.url)) as client:
        task = Task(env_name="gallery/Echo", deployment_name="gallery/Echo", split="test", index=2)
        session = client.session(task)
        opening = await session.open(task)
        await session.close()
    assert text_of(opening.messages[0].content) == "Task 2."


async def test_results_carry_reward_and_end(gallery):
    async with Playing("Echo", gallery.url) as play:
        result = await play.call("echo", text="ä  b")
        assert (text_of(result.content), result.reward, result.finished) == ("ä  b", 0.25, False)
        result = await play.call("finish")
        assert (result.reward, result.finished, result.failure) == (1.0, True, None)
        with pytest.raises(SessionError, match="episode_finished"):
            await play.call("echo", text="more")
    async with Playing("Terminal", gallery.url) as play:
        assert (await play.call("look")).reward is None


async def test_indented_output_arrives_whole(gallery):
    async with Playing("Indented", gallery.url) as play:
        for size in (4_095, 20_002):
            assert text_of((await play.call("show", size=size)).content) == f"{'x':>{size}}"


def test_text_becomes_valid_unicode_and_unknown_blocks_are_refused():
    text = {"type": "text", "text": "a \ud800 \U0001f600"}
    result = result_of("look", {"ok": True, "output": {"blocks": [text], "newer": 1}}, 0.0)
    assert text_of(result.content) == "a \ufffd \U0001f600"
    with pytest.raises(msgspec.ValidationError):
        result_of("look", {"ok": True, "output": {"blocks": [{"type": "video", "data": ""}]}}, 0.0)


async def test_the_models_mistakes_are_results(gallery):
    async with Playing("Echo", gallery.url) as play:
        result = await play.call("no_such_tool")
        assert result.failure is FailureKind.UNKNOWN_TOOL
        result = await play.call("echo", wrong=1)
        assert result.failure is FailureKind.INVALID_ARGUMENTS
        assert "text" in text_of(result.content)


async def test_a_failing_tool_is_a_fault_of_one_line(gallery):
    async with Playing("Failing", gallery.url) as play:
        with pytest.raises(SessionError, match=r"^calling tool `fail` of gallery/Failing: .*the disk is on fire$"):
            await play.call("fail")


async def test_an_image_is_kept(gallery):
    async with Playing("Picture", gallery.url) as play:
        _, image = (await play.call("draw")).content
    assert image == ImageBlock(data=envs.PIXEL, mime_type="image/png")


async def test_a_reward_that_is_not_finite_is_a_fault(gallery):
    async with Playing("NanReward", gallery.url) as play:
        with pytest.raises(SessionError, match="not finite"):
            await play.call("pay")


async def test_a_terminal_tool_is_hidden_and_takes_the_answer(gallery):
    async with Playing("Terminal", gallery.url) as play:
        assert play.opening.answers_in_text
        assert [tool.name for tool in play.opening.tools] == ["look"]
        result = await play.session.answer("right")
        assert (text_of(result.content), result.reward, result.finished) == ("judged: right", 1.0, True)
    async with Playing("Echo", gallery.url) as play:
        with pytest.raises(SessionError, match="no plain answer"):
            await play.session.answer("right")


async def test_a_conversation_is_kept_message_by_message(gallery):
    async with Playing("Conversation", gallery.url) as play:
        _, _, action, result, follow_up = play.opening.messages
    assert [m.role for m in play.opening.messages] == ["system", "user", "assistant", "tool", "user"]
    assert (action.reasoning, text_of(action.content)) == ("Look.", "A moment.")
    assert action.calls == (ToolCall(name="look", arguments={"where": "up"}),)
    assert (result.name, text_of(result.content), text_of(follow_up.content)) == ("look", "the sky", "And now?")


async def test_every_request_names_the_variant(gallery):
    before = len(gallery.requests)
    async with Playing("Echo", gallery.url) as play:
        await play.call("echo", text="a")
    asked = {path for path, _ in gallery.requests[before:]}
    assert "/echo/call" in asked
    assert not asked & {"/call", "/tools", "/task_tools", "/prompt", "/messages"}


async def test_a_failed_open_leaves_no_session(gallery):
    before = (gallery.asked("/create_session"), gallery.asked("/delete_session"), gallery.sessions)
    with pytest.raises(SessionError, match=r"opening a session of gallery/FailingSetup: HTTP 500: .*no image"):
        async with Playing("FailingSetup", gallery.url):
            pass
    assert gallery.asked("/create_session") - before[0] == 3
    assert gallery.asked("/delete_session") - before[1] == 3
    assert gallery.sessions == before[2]


async def test_a_cancelled_open_leaves_no_session(gallery):
    before = gallery.sessions
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5), Playing("SlowSetup", gallery.url):
            pass
    assert gallery.sessions == before


async def test_an_episode_that_has_not_begun_is_tried_again(gallery):
    envs.FlakySetup.tried.clear()
    async with Playing("FlakySetup", gallery.url) as play:
        assert (await play.call("act")).finished


async def test_a_call_is_cut_by_the_callers_deadline_and_run_once(gallery):
    envs.Hanging.started.clear()
    before = gallery.sessions
    async with Playing("Hanging", gallery.url) as play:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await play.call("wait")
    assert envs.Hanging.started == ["wait"]
    assert gallery.sessions == before


class Broken:
    """Answers a call by `status` and nothing else, after the environment may have run it."""

    def __init__(self, app, status):
        self.app = app
        self.status = status

    async def __call__(self, scope, receive, send):
        if not scope.get("path", "").endswith("/call"):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("status", [200, 429, 500, 503])
async def test_a_call_is_never_repeated(status):
    with envs.serve(envs.Echo, wrap=lambda app: Broken(app, status)) as served:
        async with Playing("Echo", served.url) as play:
            with pytest.raises(SessionError):
                await play.call("echo", text="once")
        assert served.asked("/call") == 1


async def test_a_hung_close_is_bounded(gallery):
    deleted = gallery.asked("/delete_session")
    async with Playing("HangingTeardown", gallery.url, call_timeout=0.2) as play:
        started = time.monotonic()
        await play.session.close()
        assert time.monotonic() - started < 10
    assert gallery.asked("/delete_session") == deleted + 1


async def test_a_cancelled_close_still_closes(gallery):
    before = gallery.sessions
    async with Playing("Echo", gallery.url) as play:
        closing = asyncio.create_task(play.session.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert gallery.sessions == before


async def test_close_is_idempotent_and_needs_no_open(gallery):
    async with OpenRewardClient(config_of("Echo", gallery.url)) as client:
        session = client.session(task_of("Echo"))
        await session.close()
        await session.open(task_of("Echo"))
        await session.close()
        await session.close()
        with pytest.raises(SessionError, match="not open"):
            await session.call(ToolCall(name="echo"))


def header_values(requests):
    for _, headers in requests:
        for name, value in headers.items():
            yield base64.b64decode(value).decode() if name == "x-secrets" else value


@pytest.mark.parametrize("send", [False, True])
async def test_the_key_goes_to_a_self_hosted_server_only_if_told_so(gallery, monkeypatch, send):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    before = len(gallery.requests)
    async with Playing("Telltale", gallery.url, send_api_key=send) as play:
        told = text_of((await play.call("tell", text="OPENREWARD_API_KEY")).content)
    assert told == repr(KEY if send else "")
    await asyncio.sleep(0.1)  # the ping may still be on its way
    assert any(KEY in value for value in header_values(gallery.requests[before:])) is send


async def test_the_key_goes_to_the_platform(gallery, monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setenv("OPENREWARD_SESSION_URL", gallery.url)
    before = len(gallery.requests)
    async with Playing("Echo", None):
        pass
    asked = dict(gallery.requests[before:])
    assert asked["/create"]["x-api-key"] == KEY
    assert asked["/create"]["x-deployment"] == "gallery/Echo"


async def test_without_a_key_the_platform_is_not_asked():
    with pytest.raises(ConfigError, match="OPENREWARD_API_KEY"):
        async with Playing("Echo", None):
            pass


async def test_secrets_reach_their_environment_and_no_error_text(gallery, monkeypatch):
    monkeypatch.setenv("WEATHER_KEY", "sunny-and-secret")
    async with Playing("Telltale", gallery.url, secrets={"weather_key": None}) as play:
        assert "sunny-and-secret" in text_of((await play.call("tell", text="weather_key")).content)
        with pytest.raises(SessionError, match=r"key \[secret\] refused") as caught:
            await play.call("fail", text="weather_key")
    assert caught.value.__cause__ is None


async def test_secrets_without_a_value_or_hosts_are_refused(gallery, monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setenv("HAS_VALUE", "something-secret")
    monkeypatch.setenv("STOLEN", KEY)
    async with OpenRewardClient(config_of("Echo", gallery.url, secrets={"missing": None})) as client:
        with pytest.raises(ConfigError, match=r"gallery/Echo.*missing or MISSING"):
            client.session(task_of("Echo"))
    async with OpenRewardClient(config_of("Echo", None, secrets={"has_value": None})) as client:
        with pytest.raises(ConfigError, match="hosts"):
            client.session(task_of("Echo"))
    async with OpenRewardClient(config_of("Echo", gallery.url, secrets={"stolen": None})) as client:
        with pytest.raises(ConfigError, match="send_api_key"):
            client.session(task_of("Echo"))


async def test_hosts_travel_with_the_secret(gallery, monkeypatch):
    monkeypatch.setenv("WEATHER_KEY", "sunny-and-secret")
    before = len(gallery.requests)
    hosts = {"weather_key": {"value": None, "hosts": ["api.weather.example"]}, "openai_api_key": "sk-123456789"}
    async with Playing("Echo", gallery.url, secrets=hosts):
        pass
    sent = next(headers["x-secrets"] for path, headers in gallery.requests[before:] if path == "/create")
    decoded = json.loads(base64.b64decode(sent))
    assert decoded["weather_key"] == {"value": "sunny-and-secret", "allowed_domains": ["api.weather.example"]}
    assert decoded["openai_api_key"]["allowed_domains"] == ["api.openai.com"]


async def test_a_name_that_the_server_does_not_have_is_refused(gallery):
    async with OpenRewardClient(config_of("Nowhere", gallery.url)) as client:
        task = Task(env_name="gallery/Nowhere", deployment_name="gallery/Nowhere", index=0)
        with pytest.raises(SessionError, match=r"no environment `nowhere`.*echo"):
            await client.session(task).open(task)


async def test_proxies_in_the_environment_are_not_asked(gallery, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    pings = gallery.asked("/ping")
    async with Playing("Echo", gallery.url) as play:
        await play.call("echo", text="a")
        async with asyncio.timeout(5):
            while gallery.asked("/ping") == pings:  # noqa: ASYNC110 - the server is on another thread
                await asyncio.sleep(0.01)


async def test_a_dead_server_is_a_fault_of_one_line():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(SessionError, match=r"opening a session of gallery/Echo: no answer: ") as caught:
            async with Playing("Echo", url):
                pass
    assert "\n" not in str(caught.value)


@given(st.lists(st.text(alphabet=" \tab:\u2028ä", max_size=8), max_size=5), st.lists(st.integers(0, 200), max_size=8))
def test_events_are_the_same_however_the_stream_is_cut(data, cuts):
    stream = ": hello\r\n\r\n" + "".join(f"event: chunk\r\ndata: {text}\r\n\r\n" for text in data) + "event: end\n\n"
    raw = stream.encode()
    bounds = sorted({0, len(raw), *(cut % len(raw) for cut in cuts)})
    reader = EventReader()
    events = [event for a, b in pairwise(bounds) for event in reader.feed(raw[a:b])]
    assert events == [*(("chunk", text) for text in data), ("end", "")]


class _Impatient:
    """A way to a server that closes a connection, unanswered, when a request comes after `idle` seconds of silence."""

    def __init__(self, url: str, idle: float) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._upstream = (host, int(port))
        self._idle = idle
        self._serving: set[asyncio.Task | None] = set()
        self.closed = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await asyncio.wait([task for task in self._serving if task], timeout=10)

    async def _serve(self, reader, writer):
        self._serving.add(asyncio.current_task())
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        loop = asyncio.get_running_loop()
        last = loop.time()

        async def answers():
            nonlocal last
            while data := await upstream_reader.read(65536):
                last = loop.time()
                writer.write(data)
            writer.close()

        task = asyncio.create_task(answers())
        while data := await reader.read(65536):
            if loop.time() - last > self._idle:
                self.closed += 1
                break
            last = loop.time()
            upstream_writer.write(data)
        upstream_writer.close()
        await upstream_writer.wait_closed()
        await task
        await writer.wait_closed()


async def test_a_pause_between_calls_does_not_run_into_a_closing_connection():
    with envs.serve(envs.Echo) as served:
        async with _Impatient(served.url, idle=1.5) as way, Playing("Echo", way.url) as playing:
            await asyncio.sleep(2.0)
            answer = await playing.session.call(ToolCall(name="echo", arguments={"text": "still here"}))
    assert "still here" in text_of(answer.content)
    assert way.closed == 0
