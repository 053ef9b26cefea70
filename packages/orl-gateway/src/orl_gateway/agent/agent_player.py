"""Collect a rollout with an agent of the user's: a function or a program, through the gateway of the event loop.

The agent's end ends the episode. An episode that is over ends its agent: at once if the trainer or a deadline ended it,
else after a moment in which the agent may end by itself. An agent that fails is broken machinery (ERROR, law L3),
unless the episode is over or its context was full: agents end on such a refusal. So is one that gets no answer.

A program leads a process group, which ends with the episode. A process that it started in another session ends too: all
have a variable that no other episode has. It gets the variables that the configuration names, a few like PATH, and no
secret that it does not need.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any
from weakref import WeakKeyDictionary

from msgspec import Struct, field
from orl_core import (
    ConfigError,
    Message,
    OrlError,
    Renderer,
    RolloutSpec,
    StopReason,
    ToolCall,
    ToolSpec,
    Trajectory,
    boundary,
    text_of,
)
from orl_core.config import AgentConfig
from orl_core.config.agent import MARK
from orl_rollout import Engine, Session
from orl_rollout.edge import children, interrupt
from orl_rollout.functions import loading
from orl_rollout.loop.clock import Pause, give_up, never
from orl_rollout.runtime.runtime import Player

from orl_gateway.api.gateway import Gateway
from orl_gateway.episode.episode import Episode

POLL_SECONDS = 0.25
SHOWN_CHARACTERS = 1_000  # of a program's output, in an error
GRACE_SECONDS = 5.0  # in which an agent may end after its episode, and clean up after it is cancelled


class AgentEpisode(Struct, frozen=True, kw_only=True):
    """One episode, as an agent sees it.

    `base_url` is for OpenAI's clients, `anthropic_base_url` for Anthropic's; `api_key` and `model` for both. `messages`
    open the episode, and `prompt` is their text. `tools` are those that `mcp_url` serves. `over` tells whether the
    environment has ended the episode.
    """

    base_url: str
    anthropic_base_url: str
    mcp_url: str
    api_key: str
    model: str
    prompt: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    over: Callable[[], bool]
    call_tool: Callable[[ToolCall], Awaitable[Any]]

    async def call(self, name: str, **arguments: Any) -> str:
        """Call a tool of the environment without MCP, and return the text of its result.

        Raises:
            RequestRefused: the episode is over, or the environment failed.
        """
        return text_of((await self.call_tool(ToolCall(name=name, arguments=arguments))).content)


Agent = Callable[[AgentEpisode], Awaitable[object]]


def player_of(agent: AgentConfig) -> Player:
    """Return the player of an agent: the entry point `orl.agents`.

    Raises:
        ConfigError: the function cannot be loaded or is no `async def` of an episode, or the program cannot be started.
    """
    samples = agent.forced_calls == "sample"
    if not agent.function:
        check_command(agent)
        return AgentPlayer(agent, timeout=agent.timeout, samples_forced_calls=samples)
    with loading("agent", agent.function) as function:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{type(function).__name__} is no `async def` function of an episode")
        inspect.signature(function).bind(None)
    return AgentPlayer(function, samples_forced_calls=samples)


class AgentPlayer:
    """Collect rollouts as a Player. `timeout` is the agent's own deadline in seconds, if it is shorter.

    `samples_forced_calls`: as for `History`.
    """

    def __init__(
        self, agent: Agent | AgentConfig, *, timeout: float | None = None, samples_forced_calls: bool = False
    ) -> None:
        self._agent = agent
        self._timeout = timeout
        self._samples = samples_forced_calls

    async def __call__(
        self,
        job: RolloutSpec,
        *,
        session: Session,
        renderer: Renderer,
        engine: Engine,
        stopped: Callable[[], bool] = never,
        pause: Pause = give_up,
    ) -> Trajectory:
        """Collect one episode of `job.task`. A trainer that aborts it ends it: it never pauses."""
        episode = Episode(job, session=session, renderer=renderer, engine=engine, stopped=stopped)
        episode.history.samples_forced_calls = self._samples
        ends = time.monotonic() + min(job.limits.rollout_timeout, self._timeout or job.limits.rollout_timeout)
        try:
            async with AsyncExitStack() as opened:
                await opened.enter_async_context(episode)  # first: it closes the session on every path
                gateway = await opened.enter_async_context(shared_gateway())
                token = gateway.add(episode)
                opened.callback(gateway.remove, token)
                await self._collect(episode, _view(gateway, episode, token), ends)
        except OrlError as fault:
            episode.state.fail(fault)
        return episode.trajectory()

    async def _collect(self, episode: Episode, view: AgentEpisode, ends: float) -> None:
        """Run the agent to its end or the episode's, and end both."""
        printed = bytearray()
        task = asyncio.ensure_future(self._run(view, printed))
        try:
            while not episode.state.over and not await _ended(task, min(POLL_SECONDS, ends - time.monotonic())):
                if episode.state.stopped():
                    episode.state.end(StopReason.ABORTED)
                elif time.monotonic() >= ends:
                    episode.state.end(StopReason.TIMEOUT)
            if episode.state.ending is StopReason.FINISHED:
                await _ended(task, max(0.0, min(GRACE_SECONDS, ends - time.monotonic())))
        finally:
            task.cancel()
            await _ended(task, GRACE_SECONDS)
        fault = task.exception() if task.done() and not task.cancelled() else None
        output = printed.decode("utf-8", "replace").replace(view.api_key, "[token]")
        text = "" if fault is None else str(fault).replace(view.api_key, "[token]")
        await episode.finish(text, self._output(output))

    async def _run(self, view: AgentEpisode, printed: bytearray) -> None:
        with boundary(OrlError, "running the agent"):
            if isinstance(self._agent, AgentConfig):
                variables = {
                    "OPENAI_BASE_URL": view.base_url,
                    "OPENAI_API_KEY": view.api_key,
                    "ANTHROPIC_BASE_URL": view.anthropic_base_url,
                    "ANTHROPIC_API_KEY": view.api_key,
                    "ORL_MCP_URL": view.mcp_url,
                    "ORL_PROMPT": view.prompt,
                    "ORL_MODEL": view.model,
                }
                await run_command(self._agent, variables, printed)
            else:
                await self._agent(view)

    def _output(self, printed: str) -> str:
        """Return what an error says of the output: of a program its end, of a function nothing."""
        if not isinstance(self._agent, AgentConfig):
            return ""
        end = printed.strip()[-SHOWN_CHARACTERS:]
        return f"; the end of its output: {end}" if end else "; it printed nothing"


class _Shared(Struct):
    """The gateway of one event loop, and how many episodes use it."""

    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    gateway: Gateway | None = None
    users: int = 0


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def shared_gateway() -> AsyncGenerator[Gateway]:
    """Open the gateway of the running event loop while an episode uses it.

    A server of its own for each of hundreds of episodes would cost ports, files and time.
    """
    shared = _SHARED.setdefault(asyncio.get_running_loop(), _Shared())
    async with shared.starting:
        gateway = shared.gateway = shared.gateway or await Gateway().__aenter__()
        shared.users += 1
    try:
        yield gateway
    finally:
        shared.users -= 1
        if not shared.users:
            shared.gateway = None  # who comes while it closes starts another one
            await gateway.__aexit__()


async def _ended(task: asyncio.Task[None], seconds: float) -> bool:
    """Wait for the end of the agent for so long, and tell whether it has ended."""
    return bool((await asyncio.wait((task,), timeout=max(0.0, seconds)))[0])


def _view(gateway: Gateway, episode: Episode, token: str) -> AgentEpisode:
    messages = episode.opening.messages
    return AgentEpisode(
        base_url=f"{gateway.base_url(token)}/v1",
        anthropic_base_url=gateway.base_url(token),
        mcp_url=f"{gateway.base_url(token)}/mcp",
        api_key=token,
        model=episode.model,
        prompt="\n\n".join(message.text for message in messages),
        messages=messages,
        tools=episode.opening.tools,
        over=lambda: episode.state.over,
        call_tool=episode.tools.call,
    )


INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
)
END_SECONDS = 2.0  # in which the group may end on SIGTERM
READ_BYTES = 1 << 16


async def run_command(agent: AgentConfig, variables: Mapping[str, str], printed: bytearray) -> None:
    """Run the program to its end with `variables`, and end all that it started. A cancellation ends it too.

    `printed` gets what it prints, the last `max_output` bytes.
    """
    environment = {**environment_of(agent, variables), MARK: secrets.token_hex(16)}
    own = tempfile.mkdtemp(prefix="orl-agent-")
    try:
        async with _reading(agent.max_output, printed) as output:
            with boundary(OrlError, f"starting {agent.command[0]}"):
                process = await _start(agent, environment, own, output)
            output.close()
            try:
                with interrupt.released(lambda: _kill(process, environment)):
                    code = await process.wait()
            finally:
                await _end(process, environment)
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, own, ignore_errors=True))  # it may hold many files
    if code:
        raise OrlError(f"{agent.command[0]} ended with code {code}")


async def _start(
    agent: AgentConfig, environment: Mapping[str, str], own: str, output: IO[bytes]
) -> asyncio.subprocess.Process:
    """Start the program in its folder. If a cancellation comes meanwhile, end the group: asyncio ends no children.

    asyncio gets no pipe of it: a process would end for asyncio when nobody holds its pipe any more.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *agent.command,
            env=environment,
            cwd=Path(agent.folder) if agent.folder else own,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _end(await starting, environment)
        raise


def check_command(agent: AgentConfig) -> None:
    """Refuse a command that cannot be started here."""
    environment, program = environment_of(agent, {}), agent.command[0]
    folder = Path(agent.folder) if agent.folder else None
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"`agent.folder`: {folder} is no folder. Make it, or name another one")
    file = program if os.sep not in program else str((folder or Path(os.devnull)) / program)  # a new folder is empty
    if not shutil.which(file, path=environment.get("PATH")):
        where = f"in {folder}" if folder else "on PATH. Give its whole path, or set `agent.folder`"
        raise ConfigError(f"`agent.command`: {program} is no program {where}")


def environment_of(agent: AgentConfig, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the program. `variables` win over the configuration."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    for name, value in agent.env.items():
        if value is None and name not in os.environ:
            raise ConfigError(f"`agent.env.{name}` is null, and the variable is not set. Set it")
        environment[name] = os.environ[name] if value is None else value
    return {**environment, **variables}


@asynccontextmanager
async def _reading(most: int, printed: bytearray) -> AsyncGenerator[IO[bytes]]:
    """Yield the writing end of a pipe. Its last `most` bytes are kept in `printed`, also those after the block."""
    stream = asyncio.StreamReader()
    out, into = os.pipe()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(out, "rb", 0)
    )

    async def read() -> None:
        while part := await stream.read(READ_BYTES):
            printed.extend(part)
            del printed[:-most]

    reading = asyncio.ensure_future(read())
    try:
        with os.fdopen(into, "wb", 0) as output:
            yield output
    finally:
        try:
            await asyncio.wait((reading,), timeout=END_SECONDS)
        finally:
            reading.cancel()
            pipe.close()


async def _end(process: asyncio.subprocess.Process, environment: Mapping[str, str]) -> None:
    """End the process group and all that the program left behind: SIGTERM, then SIGKILL."""
    if process.returncode is None:
        children.send(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
    await asyncio.to_thread(_kill, process, environment)
    await process.wait()


def _kill(process: asyncio.subprocess.Process, environment: Mapping[str, str]) -> None:
    children.send(process.pid, signal.SIGKILL)
    children.kill_marked(f"{MARK}={environment[MARK]}")
