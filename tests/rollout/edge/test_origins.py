"""One origin for each client: no name, redirect or cookie takes a key or a request anywhere else (law L6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_core.config import decode_config
from orl_core.errors import ConfigError, EngineError, SessionError
from orl_core.messages import ToolCall
from orl_core.task import Task, row_of
from orl_rollout.edge.http import HttpClient
from orl_rollout.episodes.uploader import post
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import list_tasks
from orl_rollout.openreward.transport import Refusal
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.tasks.file import read_tasks
from orl_rollout.tasks.prepare import prepare
from orl_testing import environments as envs

from tests.kit.answering import Answering
from tests.kit.episodes import Playing, config_of, task_of

KEY = "or-key-0123456789"
STRANGE = ("/evil:8000/x", "//evil", "..", ".", "a/b", "a?b", "a#b", "a b", "a\n", "a%2e", "@evil", "é", "x" * 300)


@pytest.mark.parametrize("name", STRANGE)
def test_a_name_that_is_no_part_of_a_path_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="environment_name"):
        Task(env_name="gallery/Echo", deployment_name="gallery/Echo", environment_name=name)
    path, config = tmp_path / "tasks.jsonl", config_of("Echo", "http://127.0.0.1:1")
    row = msgspec.to_builtins(row_of(task_of("Echo")))
    row["metadata"]["environment_name"] = name
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:1: .*environment_name"):
        next(read_tasks(path, config))
    with pytest.raises(ConfigError, match="variant"):
        decode_config({"environments": {"gallery/Echo": {"variant": name}}}, "test")
    with pytest.raises(ConfigError, match="Organization/Environment"):
        decode_config({"environments": {f"gallery/{name.replace('a/b', '/')}": {}}}, "test")


@pytest.mark.parametrize(
    ("count", "env_name", "tasks", "subject"),
    [
        (1, "/evil:8000/x", [{}], "env_name"),
        (1, "echo", [{"headers": [["x-api-key", KEY]]}], "secret"),
        (2, "echo", [{}], "2 tasks"),
        (1, "echo", [], "1 tasks"),
        (1, "echo", [{"text": "\ud800"}], "surrogate"),
    ],
    ids=["name", "key", "short page", "empty page", "lone surrogate"],
)
async def test_listing_that_cannot_be_written_names_its_server(
    count: int,
    env_name: str,
    tasks: list[Any],
    subject: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    body = json.dumps({"env_name": env_name, "tasks": tasks}).encode()

    class Listing(Answering):
        answers = {"/num_tasks": (200, [], b'{"num_tasks": %d}' % count), "/task_range": (200, [], body)}

    with (
        envs.serve(envs.Echo, wrap=Listing) as served,
        pytest.raises(SessionError, match=f"gallery/Echo.*{subject}"),
    ):
        await prepare(config_of("Echo", served.url, send_api_key=True), tmp_path / "tasks.jsonl")
    assert not (tmp_path / "tasks.jsonl").exists()


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:1/x", "https://127.0.0.1:1/x", "http://127.0.0.1:2/", "//evil/x", "x"]
)
async def test_a_request_to_another_origin_is_not_sent(target: str) -> None:
    """`//evil/x` is a path below the client's own URL; its connection is refused there."""
    async with HttpClient("http://127.0.0.1:1") as http:
        error = OSError if target.startswith("//") else ValueError
        with pytest.raises(error, match="127.0.0.1:1" if target != "x" else "x"):
            async with http.request("GET", target, headers={}):
                pass


async def test_only_an_address_that_begins_so_is_a_socket() -> None:
    with envs.serve(envs.Echo) as served:
        async with HttpClient(f"{served.url}/unix:x") as http, http.request("GET", "/", headers={}) as answer:
            assert answer.status == 308


@pytest.mark.parametrize("url", ["ftp://h", "h:1", "", "http://h/?a=b", "http://h/#a", "http://"])
async def test_a_client_has_a_plain_http_url(url: str) -> None:
    with pytest.raises(ValueError, match="HOST"):
        HttpClient(url)


@pytest.mark.parametrize("login", ["user:hidden", ":hidden", "hidden"])
async def test_login_in_engine_address_is_refused_and_not_shown(login: str) -> None:
    with pytest.raises(EngineError, match="has a login") as caught:
        async with SglangEngine(f"http://{login}@127.0.0.1:1", context_tokens=100):
            pass
    assert "hidden" not in str(caught.value)


LISTED = ("/list_environments", "/create_session", "/splits", "/num_tasks", "/task_range", "/delete_session")
PLAYED = ("/create_session", "/create", "/messages", "/task_tools", "/ping", "/call", "/delete", "/delete_session")


def moved(paths: Sequence[str], status: int, there: str) -> type[Answering]:
    class Moved(Answering):
        answers = {path: (status, [(b"location", f"{there}{path}".encode())], b"") for path in paths}

    return Moved


@pytest.mark.slow
@pytest.mark.parametrize("status", [302, 307])
async def test_no_request_follows_a_redirect_with_the_key(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)
    monkeypatch.setattr("orl_rollout.openreward.session.PING_SECONDS", 0.01)
    with envs.serve(envs.Echo) as other:
        for path in LISTED:
            with envs.serve(envs.Echo, wrap=moved([path], status, other.url)) as served:
                async with OpenRewardClient(config_of("Echo", served.url, send_api_key=True)) as client:
                    try:
                        listing = await open_listing(client, "gallery/Echo", "train")
                        assert [task async for task in list_tasks(listing, [0])]
                    except SessionError as fault:
                        assert f"HTTP {status}" in str(fault)  # noqa: PT017 - a deletion that fails is no fault
        for path in PLAYED:
            with envs.serve(envs.Echo, wrap=moved([path], status, other.url)) as served:
                try:
                    async with Playing("Echo", served.url, send_api_key=True) as play:
                        async with asyncio.timeout(10):
                            while not served.count("/ping"):  # noqa: ASYNC110 - the server is on another thread
                                await asyncio.sleep(0.01)
                        await play.session.call(ToolCall(name="finish"))
                except SessionError as fault:
                    assert f"HTTP {status}" in str(fault)  # noqa: PT017
        assert other.requests == []


async def test_an_upload_follows_no_redirect() -> None:
    with envs.serve(envs.Echo) as other, envs.serve(envs.Echo, wrap=moved(["/v1/rollouts"], 307, other.url)) as served:
        async with HttpClient(served.url) as http:
            with pytest.raises(Refusal):
                await post(http, b"{}", again=lambda _: False)
        assert other.requests == []


class Sticky:
    """A load balancer that names the backend of a session in a cookie, and refuses a session without its own."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.made = 0
        self.seen: list[tuple[str, str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode() for name, value in scope.get("headers", ())}
        path, sid = scope.get("path", ""), headers.get(b"x-session-id", "")
        self.seen.append((path, sid, headers.get(b"cookie", "")))
        self.made += path == "/create_session"
        cookie = f"backend={self.made}; Path=/; HttpOnly".encode()

        async def sticking(message: Any) -> None:
            if message["type"] == "http.response.start" and path == "/create_session":
                message = {**message, "headers": [*message["headers"], (b"set-cookie", cookie)]}
            await send(message)

        await self.app(scope, receive, sticking)


async def test_each_session_has_cookies_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orl_rollout.openreward.session.PING_SECONDS", 0.01)
    balancers: list[Sticky] = []

    def wrap(app: Any) -> Sticky:
        balancers.append(Sticky(app))
        return balancers[-1]

    with envs.serve(envs.Echo, wrap=wrap) as served:
        async with OpenRewardClient(config_of("Echo", served.url)) as client:
            for number in range(3):
                session = client.session(task_of("Echo", number=number))
                await session.open(task_of("Echo", number=number))
                async with asyncio.timeout(10):
                    while len({sid for path, sid, _ in balancers[0].seen if path == "/ping"}) <= number:  # noqa: ASYNC110 - the server is on another thread
                        await asyncio.sleep(0.01)
                await session.call(ToolCall(name="finish"))
                await session.close()
    seen = [(path, sid, cookie) for path, sid, cookie in balancers[0].seen if sid]
    assert not any(cookie for path, _, cookie in balancers[0].seen if path == "/create_session")
    cookies = [{cookie for _, sid, cookie in seen if sid == one} for one in dict.fromkeys(sid for _, sid, _ in seen)]
    assert cookies == [{"backend=1"}, {"backend=2"}, {"backend=3"}]
    assert {sid for path, sid, _ in seen if path == "/ping"} == {sid for _, sid, _ in seen}
