"""Episodes open and close on a real OpenReward server: reading, retries, and nothing left behind."""

import asyncio
import json
import socket
import time
from contextlib import nullcontext
from importlib.metadata import version

import msgspec
import pytest
from orl_core.config import decode_config
from orl_core.errors import ConfigError, SessionError
from orl_core.messages import ToolCall, text_of
from orl_core.task import Task
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.wire import ToolListing
from orl_rollout.run_folder.environments import record_versions
from orl_testing import environments as envs
from starlette.responses import JSONResponse

from tests.kit.episodes import Playing, config_of, task_of

pytestmark = pytest.mark.usefixtures("short_pauses")


async def test_the_opening_holds_messages_and_tools(gallery):
    async with Playing("Echo", gallery.url) as play:
        assert [(m.role, text_of(m.content)) for m in play.opening.messages] == [("user", "Task 1.")]
        echo, finish = play.opening.tools
        assert (echo.name, echo.description) == ("echo", "Say the text again.")
        assert echo.parameters["properties"]["text"]["type"] == "string"
        assert finish.parameters == {"type": "object", "properties": {}}
        assert not play.opening.accepts_text_answer


async def test_a_task_known_by_its_index_opens(gallery):
    async with OpenRewardClient(config_of("Echo", gallery.url)) as client:
        task = Task(env_name="gallery/Echo", deployment_name="gallery/Echo", split="test", index=2)
        session = client.session(task)
        opening = await session.open(task)
        await session.close()
    assert text_of(opening.messages[0].content) == "Task 2."


async def test_a_terminal_tool_is_hidden_and_takes_the_answer(gallery):
    async with Playing("Terminal", gallery.url) as play:
        assert play.opening.accepts_text_answer
        assert [tool.name for tool in play.opening.tools] == ["look"]
        result = await play.session.answer("right")
        assert (text_of(result.content), result.reward, result.finished) == ("judged: right", 1.0, True)
    async with Playing("Echo", gallery.url) as play:
        with pytest.raises(SessionError, match="no plain answer"):
            await play.session.answer("right")


def test_terminal_tool_is_hidden_though_the_server_lists_it():
    tools = [{"name": "look", "input_schema": None}, {"name": "submit"}]
    listing = msgspec.convert({"tools": tools, "terminal_tool": {"name": "submit", "arg": "answer"}}, ToolListing)
    assert [tool.name for tool in listing.specs()] == ["look"]


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


async def test_an_episode_asks_six_times_and_for_each_call():
    """A proxy may route by the first and the last, and a session's tools are its own: none can be left out."""
    with envs.serve(envs.Echo) as served:
        async with Playing("Echo", served.url) as play:
            await play.call("echo", text="a")
            await play.call("finish")
    opening = ["/create_session", "/create", "/echo/messages", "/echo/task_tools"]
    assert [path for path, _ in served.requests] == [*opening, *["/echo/call"] * 2, "/delete", "/delete_session"]


async def test_a_name_that_the_server_does_not_have_is_refused(gallery):
    async with OpenRewardClient(config_of("Nowhere", gallery.url)) as client:
        task = Task(env_name="gallery/Nowhere", deployment_name="gallery/Nowhere", index=0)
        with pytest.raises(SessionError, match=r"no environment `nowhere`.*echo"):
            await client.session(task).open(task)


async def test_a_dead_server_is_a_fault_of_one_line():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(SessionError, match=r"opening a session of gallery/Echo: no answer: ") as caught:
            async with Playing("Echo", url):
                pass
    assert "\n" not in str(caught.value)


async def test_a_hung_close_is_bounded(gallery):
    deleted = gallery.count("/delete_session")
    async with Playing("HangingTeardown", gallery.url, call_timeout=0.2) as play:
        started = time.monotonic()
        await play.session.close()
        assert time.monotonic() - started < 10
    assert gallery.count("/delete_session") == deleted + 1


async def test_a_cancelled_close_still_closes(gallery):
    """However often, and by way of its teardown."""
    before, deleted = gallery.sessions, [gallery.count(path) for path in ("/delete", "/delete_session")]
    async with Playing("Echo", gallery.url) as play:
        closing = asyncio.create_task(play.session.close())
        for _ in range(3):
            await asyncio.sleep(0)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert gallery.sessions == before
        assert [gallery.count(path) - 1 for path in ("/delete", "/delete_session")] == deleted


async def test_close_is_idempotent_and_needs_no_open(gallery):
    async with OpenRewardClient(config_of("Echo", gallery.url)) as client:
        session = client.session(task_of("Echo"))
        await session.close()
        await session.open(task_of("Echo"))
        await session.close()
        await session.close()
        with pytest.raises(SessionError, match="not open"):
            await session.call(ToolCall(name="echo"))


class Bodies:
    """Keeps the bodies of requests for a session."""

    def __init__(self, app):
        self.app = app
        self.seen = []

    async def __call__(self, scope, receive, send):
        async def kept():
            message = await receive()
            if scope.get("path") == "/create_session" and message.get("body"):
                self.seen.append(json.loads(message["body"]))
            return message

        await self.app(scope, kept, send)


async def test_env_overrides_reach_the_session_with_secrets(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-container")
    wraps = []
    with envs.serve(envs.Echo, wrap=lambda app: wraps.append(Bodies(app)) or wraps[0]) as served:
        settings = {
            "base_url": served.url,
            "secrets": {"OPENAI_API_KEY": None},
            "env_overrides": {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": None},
        }
        config = decode_config({"environments": {"gallery/Echo": settings}}, "test")
        async with OpenRewardClient(config) as client:
            session = client.session(task_of("Echo", 1))
            await session.open(task_of("Echo", 1))
            await session.close()
    asked = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "sk-of-the-container"}
    assert wraps[0].seen == [{"env": asked}]
    assert "sk-of-the-container" not in json.dumps(config.public())


@pytest.mark.parametrize(
    ("overrides", "variable"),
    [({"OPENAI_API_KEY": "sk-1"}, "OPENAI_API_KEY"), ({"URL": "http://a:b@c"}, "URL"), ({"OTHER": None}, "OTHER")],
)
def test_env_overrides_hold_no_secret(overrides, variable):
    with pytest.raises(ConfigError, match=f"env_overrides.{variable}"):
        decode_config({"environments": {"A/B": {"env_overrides": overrides}}}, "test")


async def test_version_of_a_server_is_recorded_if_it_answers(gallery, tmp_path):
    tree = {"gallery/Echo": {"base_url": gallery.url}, "gone/Gone": {"base_url": "http://127.0.0.1:9"}}
    await record_versions(decode_config({"environments": tree}, "test"), tmp_path)
    recorded = json.loads((tmp_path / "environments.json").read_text())
    assert recorded == {"gallery/Echo": {"version": version("openreward"), "build_sha": None}, "gone/Gone": None}


@pytest.mark.parametrize(("wanted", "same"), [("4f2a9c1e", True), ("4f2a", True), ("77", False)])
async def test_another_build_of_an_environment_is_refused(monkeypatch, tmp_path, wanted, same):
    monkeypatch.setenv("OPENREWARD_BUILD_SHA", "4f2a9c1e")
    with envs.serve(envs.Echo) as served:
        config = decode_config({"environments": {"my/Echo": {"base_url": served.url, "version": wanted}}}, "test")
        with nullcontext() if same else pytest.raises(ConfigError, match="my/Echo: `version` is 77"):
            await record_versions(config, tmp_path)
    assert (tmp_path / "environments.json").exists() == same


async def test_payment_required_says_what_to_do():
    with envs.serve(envs.Echo, wrap=without_credit) as served:
        async with OpenRewardClient(config_of("Echo", served.url)) as client:
            session = client.session(task_of("Echo", 1))
            with pytest.raises(SessionError, match=r"add credit to the account.*balance: 0"):
                await session.open(task_of("Echo", 1))


def without_credit(app):
    """Answer as OpenReward does to an account without credit."""

    async def answer(scope, receive, send):
        refused = scope.get("path") == "/create_session"
        await (JSONResponse({"detail": "balance: 0"}, 402) if refused else app)(scope, receive, send)

    return answer
