"""One episode on an OpenReward server, behind the Session protocol.

Deadlines of calls are the loop's. Opening and closing have their own. The episode begins when the opening is complete.
Until then a failed remote session is released and replaced by a fresh one. If the server is busy, the code that counts
sessions retries (`orl_rollout.runtime.admission`). A call is made once. The module knows nothing of configurations.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.errors import SessionAnswerError, SessionError, cut
from orl_core.messages import Message, ToolCall, ToolResult
from orl_core.task import Task

from orl_rollout.edge.http import KEPT_BYTES
from orl_rollout.edge.retry import retried
from orl_rollout.logs import Sparing, logger_of
from orl_rollout.loop.session import Opening, SessionLost
from orl_rollout.openreward.faults import FORGOTTEN, as_session_error
from orl_rollout.openreward.open_sessions import OpenSessions
from orl_rollout.openreward.remote import RemoteSession
from orl_rollout.openreward.transport import FAULTS, Endpoint, Refusal, transient
from orl_rollout.openreward.wire import (
    ToolListing,
    candidate_of,
    messages_of,
    result_of,
    scores_of,
)

logger = logger_of(__name__)
warnings = Sparing(logger)

OPEN_SECONDS = 600.0  # for all of an opening: a server may be minutes in starting


class SessionOptions(Struct, frozen=True, kw_only=True):
    """The options that all sessions of one environment share. `secrets` is the value of the header that holds them."""

    name: str
    secrets: str
    toolset: str | None
    overrides: dict[str, str] = {}
    close_seconds: float
    open_sessions: OpenSessions | None = None


class OpenRewardSession:
    """Plays one task; made by `OpenRewardClient.session`."""

    def __init__(self, options: SessionOptions, reach: Callable[[Task], Awaitable[Endpoint]]) -> None:
        self._options = options
        self._reach = reach
        self._remote: RemoteSession | None = None
        self._listing = ToolListing()

    async def open(self, task: Task) -> Opening:
        """Open a remote session of `task` and read its messages and tools."""
        with as_session_error(f"opening a session of {self._options.name}"):
            async with asyncio.timeout(OPEN_SECONDS):
                return await retried(lambda: self._begin(task), FAULTS, again=_begins_again)

    async def call(self, call: ToolCall) -> ToolResult:
        """Call a tool once. A refusal that is the model's mistake is a result with `failure`."""
        return await self._call(call.name, call.arguments)

    async def answer(self, text: str) -> ToolResult:
        """End the episode with a plain answer, by the environment's terminal tool."""
        terminal = self._listing.terminal_tool
        if terminal is None:
            raise SessionError(f"{self._options.name} takes no plain answer: it has no terminal tool")
        return await self._call(terminal.name, {} if terminal.arg is None else {terminal.arg: text})

    async def score_group(self, candidates: Sequence[Sequence[Message]]) -> tuple[float, ...]:
        """Return the environment's comparative scores of conversations about this task, one for each, in order.

        It changes nothing on the server, so it is retried after a broken connection.
        """
        remote, name = self._remote, self._options.name
        if remote is None or not self._listing.supports_score_group:
            raise SessionError(f"{name} scores no groups: {'no score_group' if remote else 'the session is not open'}")
        with as_session_error(f"scoring a group of {name}", begun=True):
            calls = self._listing.takes_calls
            sent = [candidate_of(conversation, calls=calls) for conversation in candidates]
            return scores_of(await remote.run("/score_group", {"candidates": sent}, repeatable=True), len(sent))

    async def close(self) -> None:
        """Release the remote session within `close_seconds` and a last word, cancelled or not."""
        remote, self._remote = self._remote, None
        if remote is not None:
            await _uninterrupted(_leave(remote, self._options))

    async def _begin(self, task: Task) -> Opening:
        endpoint = await self._reach(task)
        options, listed = self._options, self._options.open_sessions
        named = partial(listed.opened, options.name) if listed is not None else None
        self._remote = remote = RemoteSession(endpoint, options.secrets, options.overrides, named=named)
        begun = False
        try:
            await remote.create(_episode(task, endpoint.variant, self._options.toolset))
            try:
                name, answer = await remote.get("/messages", "/prompt")
            except Refusal as refusal:
                if refusal.status not in FORGOTTEN:
                    raise
                raise aiohttp.ServerDisconnectedError("the server restarted: it has forgotten the session") from refusal
            messages = messages_of(answer if name == "/messages" else [{"role": "user", "blocks": answer}])
            self._listing = msgspec.convert((await remote.get("/task_tools", "/tools"))[1], ToolListing)
            begun = True
        finally:
            if not begun:
                await self.close()
        accepts_text_answer = self._listing.terminal_tool is not None
        return Opening(messages=messages, tools=self._listing.specs(), accepts_text_answer=accepts_text_answer)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        remote = self._remote
        if remote is None:
            raise SessionError(f"calling tool `{name}` of {self._options.name}: the session is not open")
        started, what = time.monotonic(), f"calling tool `{name}` of {self._options.name}"
        with as_session_error(what, begun=True):
            reply = await remote.run("/call", {"name": name, "input": arguments})
            try:
                return result_of(name, reply, time.monotonic() - started)
            except (msgspec.ValidationError, SessionAnswerError) as exc:
                answer = cut(json.dumps(reply, ensure_ascii=False), KEPT_BYTES)
                raise SessionAnswerError(f"{what}: its answer is refused: {exc}", answer=answer) from exc


def _episode(task: Task, variant: str, toolset: str | None) -> dict[str, Any]:
    """Return the body that creates the episode: the task itself, or its index in the listing."""
    by_index = not task.task_spec and task.index is not None
    named = {"split": task.split, "index": task.index} if by_index else {"task_spec": task.task_spec}
    env_name = variant or ("" if by_index else task.environment_name)
    return {**named, **({"env_name": env_name} if env_name else {}), **({"toolset_name": toolset} if toolset else {})}


def _begins_again(fault: Exception) -> bool:
    """Return whether a fresh session may begin at once. A connection that took seconds to fail is the caller's."""
    return transient(fault) and not isinstance(fault, aiohttp.ConnectionTimeoutError)


async def _leave(remote: RemoteSession, options: SessionOptions) -> None:
    """Release the remote session. A fault is logged, once a minute, because the episode is already complete.

    It is no warning if the server is away: its sessions ended with it.
    """
    try:
        with as_session_error(f"closing a session of {options.name}"):
            await remote.delete(options.close_seconds)
            if options.open_sessions is not None and remote.sid:
                options.open_sessions.closed(remote.sid)
    except SessionLost as fault:
        logger.info("%s", fault)
    except SessionError as fault:
        warnings.warn(str(fault), options.name)


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, of bounded time, to its end. A cancellation meanwhile takes effect afterwards."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    task.result()
