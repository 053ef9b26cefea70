"""The key travels to the platform alone, secrets to their environments."""

import asyncio
import base64
import json

import pytest
from orl_core.errors import ConfigError
from orl_core.messages import ToolCall, text_of
from orl_rollout.openreward import OpenRewardClient
from orl_testing import environments as envs

from tests.kit.episodes import Playing, config_of, task_of
from tests.launcher.platform_api import platform_api

KEY = "or-key-0123456789"


def header_values(requests):
    for _, headers in requests:
        for name, value in headers.items():
            yield base64.b64decode(value).decode() if name == "x-secrets" else value


def secrets_sent(gallery, before):
    """Return the secrets of the first session that was created since so many requests."""
    sent = next(headers["x-secrets"] for path, headers in gallery.requests[before:] if path == "/create")
    return json.loads(base64.b64decode(sent))


@pytest.mark.parametrize("send", [False, True])
async def test_the_key_goes_to_a_self_hosted_server_only_if_told_so(gallery, monkeypatch, send):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    before = len(gallery.requests)
    async with Playing("Telltale", gallery.url, send_api_key=send) as play:
        told = text_of((await play.call("tell", text="OPENREWARD_API_KEY")).content)
    assert told == repr(KEY if send else "")
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


async def test_secrets_reach_their_environment(gallery, monkeypatch):
    monkeypatch.setenv("WEATHER_KEY", "sunny-and-secret")
    async with Playing("Telltale", gallery.url, secrets={"weather_key": None}) as play:
        assert "sunny-and-secret" in text_of((await play.call("tell", text="weather_key")).content)


async def test_a_secret_that_the_platform_needs_is_asked_for_once(gallery, monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setenv("OPENREWARD_SESSION_URL", gallery.url)
    monkeypatch.delenv("MISSING", raising=False)
    config = config_of("Echo", None, secrets={"missing": None})
    with platform_api() as platform:
        monkeypatch.setenv("OPENREWARD_API_URL", platform.url)
        platform.needed = ["MISSING"]
        async with OpenRewardClient(config) as client:
            with pytest.raises(ConfigError, match=r"gallery/Echo.*missing or MISSING"):
                await client.environment("gallery/Echo")
            platform.needed = ["OTHER"]
            await asyncio.gather(*(client.environment("gallery/Echo") for _ in range(5)))
        platform.needed = None
        async with OpenRewardClient(config) as client:
            await client.environment("gallery/Echo")
        async with OpenRewardClient(config_of("Echo", None)) as client:
            await client.environment("gallery/Echo")
        assert len(platform.asked) == 3


async def test_secrets_without_hosts_or_of_others_are_refused(gallery, monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setenv("HAS_VALUE", "something-secret")
    monkeypatch.setenv("STOLEN", KEY)
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
    decoded = secrets_sent(gallery, before)
    assert decoded["weather_key"] == {"value": "sunny-and-secret", "allowed_domains": ["api.weather.example"]}
    assert decoded["openai_api_key"]["allowed_domains"] == ["api.openai.com"]


async def test_proxies_in_the_environment_are_not_asked(gallery, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr("orl_rollout.openreward.session.PING_SECONDS", 0.01)
    before = gallery.count("/ping")
    async with Playing("Echo", gallery.url) as play:
        await play.call("echo", text="a")
        async with asyncio.timeout(5):
            while gallery.count("/ping") == before:  # noqa: ASYNC110 - the server is on another thread
                await asyncio.sleep(0.01)


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


@pytest.mark.slow
async def test_pause_between_calls_meets_no_closing_connection():
    with envs.serve(envs.Echo) as served:
        async with _Impatient(served.url, idle=1.5) as way, Playing("Echo", way.url) as playing:
            await asyncio.sleep(2.0)
            answer = await playing.session.call(ToolCall(name="echo", arguments={"text": "still here"}))
    assert "still here" in text_of(answer.content)
    assert way.closed == 0
