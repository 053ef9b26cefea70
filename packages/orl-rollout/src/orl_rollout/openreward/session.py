# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
"""One episode on an OpenReward server, behind the Session protocol.

The SDK opens, pings and deletes the remote session. Calls go through its transport with `resumable_only`: a tool is
never executed twice, a broken stream is taken up again by its id. Deadlines of calls are the loop's; closing has its
own, since the SDK's has none. An episode has not begun until the opening is whole, so until then a fault may be
answered with a fresh remote session, after the failed one was released. The module knows nothing of configurations.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from msgspec import Struct
from orl_core.errors import SessionError
from orl_core.messages import Message, ToolCall, ToolResult
from orl_core.task import Task

from orl_rollout.openreward.faults import speaking, transient
from orl_rollout.openreward.wire import Listing, candidate_of, decode_listing, messages_of, result_of, scores_of
from orl_rollout.secrets import Scrubber
from orl_rollout.session import Opening

if TYPE_CHECKING:
    from openreward.api.environments.client import AsyncEnvironment, AsyncSession

logger = logging.getLogger(__name__)

PAUSES = (0.2, 1.0)  # seconds before the second and the third remote session of an episode that has not begun
RESUMES = 3  # of one call's broken stream, by its id
LAST_WORD_SECONDS = 1.0  # for deleting a remote session whose teardown hangs


class Terms(Struct, frozen=True, kw_only=True):
    """What all sessions of one environment have in common."""

    name: str
    secrets: Mapping[str, str | tuple[str, list[str]]]
    toolset: str | None
    close_seconds: float
    scrubber: Scrubber


class OpenRewardSession:
    """Plays one task; made by `OpenRewardClient.session`."""

    def __init__(self, terms: Terms, reach: Callable[[Task], Awaitable[AsyncEnvironment]]) -> None:
        self._terms = terms
        self._reach = reach
        self._remote: AsyncSession | None = None
        self._listing = Listing()
        self._prefix = ""

    async def open(self, task: Task) -> Opening:
        """Open a remote session of `task` and read its messages and tools.

        Raises:
            SessionError: the environment cannot be reached or does not start, after bounded tries.
        """
        for pause in (*PAUSES, None):
            try:
                with speaking(f"opening a session of {self._terms.name}", self._terms.scrubber):
                    return await self._begin(task)
            except SessionError as fault:
                if pause is None or not transient(fault.__cause__):
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    async def call(self, call: ToolCall) -> ToolResult:
        """Call a tool, once. A refusal that is the model's mistake is a result with `failure`.

        Raises:
            SessionError: the tool or the machinery failed, or the reply cannot be used.
        """
        return await self._call(call.name, call.arguments)

    async def answer(self, text: str) -> ToolResult:
        """End the episode with a plain answer, by the environment's terminal tool.

        Raises:
            SessionError: as for `call`, or the environment takes no plain answer.
        """
        terminal = self._listing.terminal_tool
        if terminal is None:
            raise SessionError(f"{self._terms.name} takes no plain answer: it has no terminal tool")
        return await self._call(terminal.name, {} if terminal.arg is None else {terminal.arg: text})

    async def score_group(self, candidates: Sequence[Sequence[Message]]) -> tuple[float, ...]:
        """The environment's comparative scores of conversations about this task, one for each, in order.

        It advances nothing, so the SDK repeats it where the way to the server is broken.

        Raises:
            SessionError: the environment does not score groups, its judge failed, or the scores cannot be used.
        """
        remote, name = self._remote, self._terms.name
        if remote is None or not self._listing.supports_score_group:
            raise SessionError(f"{name} scores no groups: {'no score_group' if remote else 'the session is not open'}")
        with speaking(f"scoring a group of {name}", self._terms.scrubber):
            calls = self._listing.takes_calls
            said = [candidate_of(conversation, calls=calls) for conversation in candidates]
            return scores_of(await remote.score_group(said), len(said))

    async def close(self) -> None:
        """Release the remote session within `close_seconds` and a last word, cancelled or not."""
        remote, self._remote = self._remote, None
        if remote is not None:
            await _uninterrupted(_leave(remote, self._terms))

    async def _begin(self, task: Task) -> Opening:
        environment = await self._reach(task)
        self._prefix = f"/{environment.variant}" if environment.variant else ""
        remote = _remote(environment, task, self._terms)
        self._remote = remote
        begun = False
        try:
            await remote.__aenter__()
            messages = messages_of(await remote.get_messages())
            self._listing = decode_listing(await self._get_tools(remote))
            begun = True
        finally:
            if not begun:
                await self.close()
        answers_in_text = self._listing.terminal_tool is not None
        return Opening(messages=messages, tools=self._listing.specs(), answers_in_text=answers_in_text)

    async def _get_tools(self, remote: AsyncSession) -> object:
        """The tools of this very session; of its environment where the server is too old to tell them apart."""
        try:
            return await self._get(remote, "/task_tools")
        except aiohttp.ClientResponseError as exc:
            if exc.status != 404:
                raise
        return await self._get(remote, "/tools")

    async def _get(self, remote: AsyncSession, path: str) -> object:
        from openreward.api._session.http import request_retryable

        path = f"{self._prefix}{path}"
        return await request_retryable(
            remote.client, "GET", path, True, remote.api_key, sid=remote.sid, deployment=remote.deployment
        )

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        from openreward.api._session.http import resumable_sse

        remote = self._remote
        if remote is None:
            raise SessionError(f"calling tool `{name}` of {self._terms.name}: the session is not open")
        started = time.monotonic()
        with speaking(f"calling tool `{name}` of {self._terms.name}", self._terms.scrubber):
            reply = await resumable_sse(
                remote.client,
                f"{self._prefix}/call",
                remote.api_key,
                json={"name": name, "input": arguments},
                sid=remote.sid,
                deployment=remote.deployment,
                max_retries=RESUMES,
                resumable_only=True,
            )
            return result_of(name, reply, time.monotonic() - started)


def _remote(environment: AsyncEnvironment, task: Task, terms: Terms) -> AsyncSession:
    from openreward.api.environments.types import Task as RemoteTask

    secrets = terms.secrets or None
    toolset = cast("Any", terms.toolset)
    if not task.task_spec and task.index is not None:
        return environment.session(split=task.split, index=task.index, secrets=secrets, toolset=toolset)
    remote_task = RemoteTask(
        server_name=task.server_name,
        environment_name=environment.variant or task.environment_name,
        task_spec=task.task_spec,
        namespace=task.namespace,
    )
    return environment.session(task=remote_task, secrets=secrets, toolset=toolset)


async def _leave(remote: AsyncSession, terms: Terms) -> None:
    """Tear the remote session down; past the deadline, delete it without its teardown."""
    from openreward.api._session.http import request_retryable

    what = f"closing a session of {terms.name}"
    try:
        with speaking(what, terms.scrubber):
            async with asyncio.timeout(terms.close_seconds):
                await cast("Any", remote).__aexit__(None, None, None)
    except SessionError as fault:
        logger.warning("%s, within %g s", fault, terms.close_seconds)
        with suppress(SessionError), speaking(what, terms.scrubber):
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await request_retryable(remote.client, "POST", "/delete_session", False, remote.api_key, sid=remote.sid)


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, which is bounded in time, to its end; a cancellation meanwhile takes effect afterwards."""
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
