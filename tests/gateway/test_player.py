"""Agents in place of the built-in loop: functions and programs, their endings, faults and what they may see."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec import structs
from openai import AsyncOpenAI
from orl_core.config import AgentConfig, RunConfig, decode_config
from orl_core.datum import to_data
from orl_core.errors import ConfigError, SessionError
from orl_core.messages import TextBlock, ToolResult, ToolSpec
from orl_core.task import Task
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_gateway import AgentEpisode
from orl_gateway.agent.agent_player import AgentPlayer, environment_of, player_of, run_command, shared_gateway
from orl_rollout.loop.clock import never
from orl_rollout.loop.loop import rollout
from orl_rollout.loop.session import Session, SessionLost
from orl_rollout.runtime.runtime import RolloutRequest, load_player
from orl_testing import ScriptedSession

from tests.gateway.agents import LIMITS, RENDERER, TASK, Model
from tests.kit.runtimes import runtime_of

LOOK = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {"type": "integer"}}})
HERE = "tests.gateway.test_player"


def session_of(*rewards: float) -> ScriptedSession:
    results = [
        ToolResult(name="look", content=(TextBlock(text="A wall."),), reward=reward, finished=reward == rewards[-1])
        for reward in rewards
    ]
    return ScriptedSession(results, tools=(LOOK,))


async def play(agent: Any, session: ScriptedSession, engine: Any = None, **settings: Any) -> Trajectory:
    limits = structs.replace(LIMITS, **settings.pop("limits", {}))
    player = AgentPlayer(agent, **{name: settings.pop(name) for name in ("timeout",) if name in settings})
    job = RolloutSpec(task=TASK, rollout_id="k", limits=limits)
    engine = engine or Model(("call",))
    return await player(job, session=session, renderer=RENDERER, engine=engine, **settings)


async def loops(episode: AgentEpisode) -> None:
    """An agent on the plain client: it calls what the model asks for until it is refused."""
    tools: Any = [
        {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in episode.tools
    ]
    messages: list[Any] = [{"role": "user", "content": episode.prompt}]
    async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
        while not episode.over():
            answer = await client.chat.completions.create(model=episode.model, messages=messages, tools=tools)
            message: Any = answer.choices[0].message
            messages.append(message)
            for call in message.tool_calls or ():
                text = await episode.call(call.function.name, at=len(messages))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


async def asks(episode: AgentEpisode) -> None:
    """An agent that asks the model once, and does nothing."""
    async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
        messages: Any = [{"role": "user", "content": episode.prompt}]
        await client.chat.completions.create(model=episode.model, messages=messages)


async def waits(_: AgentEpisode) -> None:
    await asyncio.Event().wait()


class Late:
    """A clock that passes every deadline once `due` says so."""

    def __init__(self, due: Callable[[], object]) -> None:
        self.due = due

    def monotonic(self) -> float:
        return time.monotonic() + 1e6 * bool(self.due())


def no_coroutine(_: AgentEpisode) -> None:
    """A function that is no agent."""


async def test_function_runs_to_the_end_of_the_episode() -> None:
    session = session_of(0.0, 0.25, 1.0)
    trajectory = await play(loops, session)
    assert (trajectory.stop_reason, trajectory.rewards) == (StopReason.FINISHED, (0.0, 0.25, 1.0))
    assert (session.opened, session.closed) == (1, 1)
    assert len(to_data(trajectory, reward=1.0)) == 1


async def test_agent_that_a_full_context_ends_is_no_error() -> None:
    trajectory = await play(loops, session_of(*([0.0] * 30), 1.0), limits={"context_tokens": 600})
    assert trajectory.stop_reason is StopReason.MAX_TOKENS
    assert trajectory.turns


async def test_agent_that_fails_after_a_compaction_is_an_error() -> None:
    async def compacts(episode: AgentEpisode) -> None:
        async with AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
            for text in ("Begin.", "word " * 2_000, "Go on."):
                with suppress(openai.BadRequestError):
                    messages: Any = [{"role": "user", "content": text}]
                    await client.chat.completions.create(model=episode.model, messages=messages)
        raise RuntimeError("a bug")

    trajectory = await play(compacts, session_of(1.0), limits={"context_tokens": 600})
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.ERROR, 2)
    assert "a bug" in trajectory.error


async def test_agent_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = asyncio.Event()

    async def stays(episode: AgentEpisode) -> None:
        await asks(episode)
        answered.set()
        await waits(episode)

    monkeypatch.setattr("orl_gateway.agent.agent_player.time", Late(answered.is_set))
    trajectory = await play(stays, session_of(1.0), timeout=600.0)
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.TIMEOUT, 1)


async def test_trainer_that_aborts_ends_the_agent() -> None:
    trajectory = await play(waits, session_of(1.0), stopped=lambda: True)
    assert trajectory.stop_reason is StopReason.ABORTED


async def test_agent_that_outlasts_its_episode_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stays(episode: AgentEpisode) -> None:
        await asks(episode)
        await episode.call("look", at=1)
        await waits(episode)

    monkeypatch.setattr("orl_gateway.agent.agent_player.GRACE_SECONDS", 0.01)
    monkeypatch.setattr("orl_gateway.agent.agent_player.POLL_SECONDS", 0.01)
    assert (await play(stays, session_of(1.0))).stop_reason is StopReason.FINISHED


async def test_environment_that_does_not_start_is_an_error() -> None:
    session = ScriptedSession(fails_to_open=SessionError("gone"))
    trajectory = await play(loops, session)
    assert trajectory.stop_reason is StopReason.ERROR
    assert "gone" in trajectory.error
    assert session.closed == 1


@pytest.mark.parametrize("name", ["no_such_module:f", f"{HERE}:nothing", f"{HERE}:no_coroutine", f"{HERE}:LOOK"])
def test_function_that_is_no_agent_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="agent"):
        player_of(AgentConfig(function=name))


class Sessions:
    """An environment whose every episode ends after one call."""

    def session(self, task: Task) -> Session:
        return session_of(0.75)


def config_of(**fields: Any) -> RunConfig:
    return decode_config({"environments": {"A/B": {}}, **fields}, "test")


def test_player_is_the_built_in_loop_unless_an_agent_is_named() -> None:
    assert load_player(config_of()) is rollout
    assert isinstance(load_player(config_of(agent=f"{HERE}:loops")), AgentPlayer)
    assert isinstance(load_player(config_of(agent={"command": ["true"]})), AgentPlayer)


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"agent": "no function"}, "agent"),
        ({"agent": {"command": ["x", "--api-key", "planted-secret"]}}, "command"),
        ({"agent": {"command": ["x"], "env": {"MY_API_KEY": "planted-secret"}}}, "MY_API_KEY"),
        ({"agent": {"command": ["x"], "env": {"OPENAI_API_KEY": None}}}, "OPENAI_API_KEY"),
        ({"agent": {"command": ["x"], "env": {"A=B": "1"}}}, "A=B"),
        ({"agent": {"function": "m:f", "command": ["x"]}}, "command"),
        ({"agent": {"function": "m:f", "timeout": 5}}, "timeout"),
        ({"agent": {"forced_calls": "never"}}, "forced_calls"),
        ({"agent": "m:f", "rollout": {"max_nudges": 2}}, "max_nudges"),
        ({"agent": "m:f", "rollout": {"retry_cut_actions": False}}, "retry_cut_actions"),
    ],
)
def test_agent_that_cannot_be_obeyed_is_refused(fields: dict[str, Any], subject: str) -> None:
    with pytest.raises(ConfigError, match=subject) as refused:
        config_of(**fields)
    assert "planted-secret" not in str(refused.value)


def program(code: str, **fields: Any) -> AgentConfig:
    return AgentConfig(command=(sys.executable, "-I", "-S", "-c", code), **fields)


async def command_plays(agent: AgentConfig, session: ScriptedSession) -> Trajectory:
    job = RolloutSpec(task=TASK, rollout_id="k", limits=LIMITS)
    return await player_of(agent)(job, session=session, renderer=RENDERER, engine=Model(("call",)), stopped=never)


async def test_program_that_fails_is_an_error_with_the_end_of_its_output() -> None:
    agent = program("print('x' * 9000); print('the cause'); raise SystemExit(3)", max_output=64)
    trajectory = await command_plays(agent, session_of(1.0))
    assert trajectory.stop_reason is StopReason.ERROR
    assert "code 3" in trajectory.error
    assert "the cause" in trajectory.error
    assert trajectory.error.count("x") < 64


async def test_program_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter")
    broken.chmod(0o700)
    trajectory = await command_plays(AgentConfig(command=(str(broken),)), session_of(1.0))
    assert trajectory.stop_reason is StopReason.ERROR
    assert "broken" in trajectory.error


@pytest.mark.parametrize(
    ("agent", "subject"),
    [
        (AgentConfig(command=("no-such-program",)), "no-such-program"),
        (AgentConfig(command=("/no/such/program",)), "/no/such/program"),
        (AgentConfig(command=("./test_player.py",)), "test_player"),  # its folder is a new one
        (AgentConfig(command=("./no-such",), folder=str(Path(__file__).parent)), "no-such"),
        (AgentConfig(command=("true",), folder="/no/such/folder"), "folder"),
        (AgentConfig(command=("true",), env={"NO_SUCH_VARIABLE": None}), "NO_SUCH_VARIABLE"),
    ],
)
def test_command_that_cannot_be_started_is_refused(agent: AgentConfig, subject: str) -> None:
    with pytest.raises(ConfigError, match=subject):
        player_of(agent)


def test_command_in_its_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o700)
    player_of(AgentConfig(command=("./mine",), folder=str(tmp_path)))


# A daemon, as programs start them: a session of its own, and no parent but init.
DAEMON = """
import os
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
"""
LEAVES = {"child": "sleep 600 &", "setsid": "setsid sleep 600 &", "daemon": f"{sys.executable} -I -S -c '{DAEMON}'"}


@pytest.mark.parametrize("leaves", LEAVES)
@pytest.mark.parametrize("ends", ["exit 0", "sleep 600"], ids=["ends", "is ended"])
async def test_program_ends_with_what_it_left_behind(leaves: str, ends: str, tmp_path: Path) -> None:
    fifo, begun = tmp_path / "alive", tmp_path / "begun"
    os.mkfifo(fifo)
    os.mkfifo(begun)
    agent = AgentConfig(command=("sh", "-c", f"exec 3>{fifo}; {LEAVES[leaves]}\n: >{begun}; {ends}"))
    bystander = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    task = asyncio.create_task(run_command(agent, {}, bytearray()))
    alive = await asyncio.to_thread(fifo.open, "rb")
    await asyncio.to_thread(begun.read_bytes)
    if ends != "exit 0":
        task.cancel()
    await asyncio.wait((task,))
    with alive:
        assert select.select([alive], [], [], 10.0)[0], "a process that it started holds the file"
        assert alive.read() == b""
    assert bystander.returncode is None, "a process of somebody else was ended"
    bystander.kill()
    await bystander.wait()


def test_program_gets_no_secret_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENREWARD_API_KEY", "HF_TOKEN", "OTHER"):
        monkeypatch.setenv(name, "planted-secret")
    monkeypatch.setenv("MY_KEY", "wanted")
    agent = AgentConfig(command=("x",), env={"MY_KEY": None, "MODE": "fast"})
    given = environment_of(agent, {"ORL_PROMPT": "Play."})
    assert "planted-secret" not in json.dumps(given)
    assert (given["MY_KEY"], given["MODE"], given["ORL_PROMPT"]) == ("wanted", "fast", "Play.")


async def test_server_ends_with_its_last_episode() -> None:
    async with shared_gateway() as gateway:
        async with shared_gateway() as same:
            assert same is gateway
        await play(asks, session_of(1.0))
        url = gateway.url  # it still runs
    with pytest.raises(openai.APIConnectionError):
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            await client.models.list()
    async with shared_gateway() as another:
        assert another is not gateway


class Forgetful:
    """An environment whose first session is lost when it is answered."""

    def __init__(self) -> None:
        self.sessions: list[ScriptedSession] = []

    def session(self, task: Task) -> Session:
        answer = ToolResult(name="answer", reward=1.0, finished=True)
        script = [answer] if self.sessions else [SessionLost("reset by peer")]
        self.sessions.append(ScriptedSession(script, accepts_text_answer=True))
        return self.sessions[-1]


ASKS_ONCE = """
import json, os, urllib.request
body = json.dumps({"model": os.environ["ORL_MODEL"], "messages": [{"role": "user", "content": "Hello."}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers))
"""


@pytest.mark.parametrize(
    ("agent", "sessions"),
    [(f"{HERE}:asks", 2), ({"command": [sys.executable, "-I", "-S", "agent.py"]}, 1)],
    ids=["function", "program"],
)
async def test_lost_function_runs_again_and_no_program(agent: Any, sessions: int, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ASKS_ONCE)
    world = Forgetful()
    config = config_of(agent=agent if isinstance(agent, str) else {**agent, "folder": str(tmp_path)})
    runtime = runtime_of(config, world, renderer=RENDERER)
    outcome = await runtime.play(RolloutRequest(task=TASK, rollout_id="k"), Model(("text", "text")))
    assert [(session.opened, session.closed) for session in world.sessions] == [(1, 1)] * sessions
    assert (outcome.replayed, outcome.reward) == ((True, 1.0) if sessions == 2 else (False, 0.0))
    assert bool(outcome.trajectory.error) is (sessions == 1)
