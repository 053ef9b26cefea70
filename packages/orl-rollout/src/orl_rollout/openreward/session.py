"""One episode on an OpenReward server, behind the Session protocol, and the requests of its remote session.

Deadlines of calls are the loop's. Opening and closing have their own. The episode begins when the opening is complete.
Until then a failed remote session is released and replaced by a fresh one. If the server is busy, the code that counts
sessions retries (`orl_rollout.runtime.admission`). A call is made once. Text of an answer is valid Unicode: a lone
surrogate becomes U+FFFD. The name of a remote session is kept as soon as the server sends it, so `delete` also releases
one whose creation failed. The module knows nothing of configurations.

A server drops a session that is silent for minutes, so each one is pinged. After a failed ping comes the next one: a
lost session shows at its next call. A server that is away fails the pings of all its sessions, which is one warning.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.errors import SessionAnswerError, SessionError, boundary, cut
from orl_core.messages import Message, ToolCall, ToolResult
from orl_core.task import Task

from orl_rollout.edge.http import KEPT_BYTES, NotJson, UnsafeAnswer
from orl_rollout.edge.retry import retried
from orl_rollout.logs import Sparing, logger_of
from orl_rollout.loop.session import Opening, SessionLost
from orl_rollout.openreward.faults import FORGOTTEN, as_session_error
from orl_rollout.openreward.open_sessions import OpenSessions
from orl_rollout.openreward.transport import FAULTS, Channel, Endpoint, Refusal, open_session, transient
from orl_rollout.openreward.wire import ToolListing, candidate_of, messages_of, result_of, scores_of

logger = logger_of(__name__)
warnings = Sparing(logger)

OPEN_SECONDS = 600.0  # for all of an opening: a server may be minutes in starting
PING_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # for one ping
LAST_WORD_SECONDS = 1.0  # for deleting a session whose teardown hangs


class RemoteSession:
    """The requests of one session. `secrets` is the header's value that holds them.

    `overrides` are variables of the environment's container. `sid` names a session that was created before; `named` is
    told the name of one that is created.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        secrets: str = "",
        overrides: Mapping[str, str] = MappingProxyType({}),
        *,
        sid: str = "",
        named: Callable[[str], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._channel = Channel(endpoint.http, valid=True)
        self._secrets = {"X-Secrets": secrets}
        self._named: dict[str, Any] = {"env": dict(overrides)} if overrides else {}  # the body, then the name
        if sid:
            self._named["task_id"] = sid
        self._tell = named
        self._pings: asyncio.Task[None] | None = None

    @property
    def sid(self) -> str:
        """Return the session's name; empty if the server has not sent it."""
        return str(self._named.get("task_id", ""))

    async def create(self, episode: Mapping[str, Any]) -> None:
        """Create a session with the environment of `episode`, and keep it alive from now on."""
        headers = {**self._endpoint.headers(""), **self._secrets}
        sid = await open_session(self._channel, headers, self._named)
        if self._tell is not None:
            self._tell(sid)
        headers = self._endpoint.headers(sid)
        secrets = {"secrets": secrets_of(self._secrets["X-Secrets"])} if self._endpoint.body_secrets else {}
        await self._channel.request("POST", "/create", {**headers, **self._secrets}, {**episode, **secrets})
        self._pings = asyncio.create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        """Ping the session every PING_SECONDS until this is cancelled."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            try:
                with boundary(SessionError, "pinging a session"):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await self._ask("POST", "/ping")
            except SessionError as fault:
                cause = type(fault.__cause__).__name__  # its message could echo a secret
                warnings.warn(f"a ping of a session failed: {cause}", self._endpoint.http.url)

    async def get(self, name: str, instead: str) -> tuple[str, Any]:
        """Return the request that was answered, `name` or for an old server `instead`, and the answer."""
        try:
            answer = await self._ask("GET", self._endpoint.path(name))
        except Refusal as refusal:
            if refusal.status != 404:
                raise
            name, answer = instead, await self._ask("GET", self._endpoint.path(instead))
        return name, answer

    async def run(self, name: str, body: dict[str, Any], *, repeatable: bool = False) -> Any:
        """Run `body` once and return its result. A `repeatable` one changes nothing on the server."""
        endpoint = self._endpoint
        headers = endpoint.headers(self.sid)
        return await self._channel.stream(endpoint.path(name), headers, body, repeatable=repeatable)

    async def delete(self, seconds: float) -> None:
        """Tear the environment down and delete the session, within `seconds`.

        After that time, and after a fault, the session is deleted without its teardown. Then the fault is raised.
        """
        if self._pings is not None:
            self._pings.cancel()
        if not self.sid:
            return
        torn_down = False
        try:
            async with asyncio.timeout(seconds):
                await self._delete("/delete")
                torn_down = True
                await self._delete("/delete_session")
        finally:
            if not torn_down:
                async with asyncio.timeout(LAST_WORD_SECONDS):
                    await self._delete("/delete_session")

    async def _delete(self, name: str) -> None:
        """Delete. It succeeds also if the session was deleted before."""

        def again(fault: Exception) -> bool:
            return transient(fault) or (isinstance(fault, Refusal) and fault.status == 429)

        try:
            await retried(lambda: self._ask("POST", name), FAULTS, again=again)
        except Refusal as refusal:
            if refusal.status not in {404, 410}:
                raise

    async def _ask(self, method: str, path: str) -> Any:
        return await self._channel.request(method, path, self._endpoint.headers(self.sid), None)


async def reads_secrets_in_body(channel: Channel) -> bool:
    """Return whether a server reads secrets in the body of `POST /create`, and ignores the header.

    ors-sdk and openreward before 0.1.64 do, and their OpenAPI description says so. It is not tried out: a server that
    refuses the field logs what it refused.
    """
    with suppress(Refusal, UnsafeAnswer, NotJson, KeyError, TypeError):
        description = await channel.request("GET", "/openapi.json", {}, None)
        return "secrets" in description["components"]["schemas"]["CreateSession"]["properties"]
    return False


def secrets_of(header: str) -> dict[str, str]:
    """Return the secrets of an `X-Secrets` header, those without a value left out."""
    sent: dict[str, dict[str, Any]] = json.loads(base64.b64decode(header))
    return {name: secret["value"] for name, secret in sent.items() if secret["value"]}


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
