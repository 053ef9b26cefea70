"""An environment on its server: its splits, and their tasks as rows of tasks.jsonl, listed page by page.

Each request has a short session of its own, because the platform routes requests by session. The SDK's client is not
used: it follows redirects with the key in a header and reads answers of any size. A listing changes nothing on the
server, so it is retried. The module knows nothing of configurations, of drawing or of files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Annotated, Any

import aiohttp
import msgspec
from msgspec import Meta, Struct
from orl_core.errors import SessionAnswerError
from orl_core.names import PathName, is_path_name
from orl_core.task import Task

from orl_rollout.edge.http import HttpClient, UnsafeAnswer
from orl_rollout.edge.retry import Waiting, retried
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.transport import FAULTS, Channel, Endpoint, Refusal, open_session

LISTING_BYTES = 1 << 25  # of one answer
LISTING_SECONDS = 900.0  # for one request of a listing: a server may be minutes in starting
LONGEST_WISH = 10.0  # seconds: the longest Retry-After that is obeyed
AGAIN = frozenset({429, 502, 503, 504})  # statuses of a busy server or of a proxy before it
FORGET_SECONDS = 5.0  # for deleting the session of a question
PAGE = 1_000  # tasks in one request


class ServerVersion(Struct, frozen=True, kw_only=True):
    """Version of an environment's server: of `openreward` there, and of the environment's build if it has one."""

    version: str | None = None
    build_sha: str | None = None


class _Split(Struct, frozen=True, kw_only=True):
    name: str


class _Count(Struct, frozen=True, kw_only=True):
    num_tasks: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Tasks(Struct, frozen=True, kw_only=True):
    tasks: list[dict[str, Any]]
    env_name: PathName | None = None  # `/task_range` of ors-sdk, and of openreward before 0.1.93, does not say it


class RemoteEnvironment(Struct, frozen=True, kw_only=True):
    """An environment on its server. Every method raises what `Channel.request` does."""

    endpoint: Endpoint

    async def version(self) -> ServerVersion:
        """Return the version of its server, and of the build that runs there."""
        return msgspec.convert(await self._ask("GET", "/version", None), ServerVersion)

    async def list_splits(self) -> list[str]:
        """Return the names of its splits."""
        splits = msgspec.convert(await self._ask("GET", self.endpoint.path("/splits"), None), list[_Split | str])
        return [split if isinstance(split, str) else split.name for split in splits]

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks in `split`."""
        path = self.endpoint.path("/num_tasks")
        return msgspec.convert(await self._ask("POST", path, {"split": split}), _Count).num_tasks

    async def get_task_range(self, split: str, start: int, stop: int) -> list[Task]:
        """Return the tasks of `split` from `start` up to `stop`."""
        body = {"split": split, "start": start, "stop": stop}
        listed = msgspec.convert(await self._ask("POST", self.endpoint.path("/task_range"), body), _Tasks)
        deployment, sent = self.endpoint.deployment, len(listed.tasks)
        if sent != stop - start:
            wanted = f"{stop - start} tasks from {start} were asked for"
            raise SessionAnswerError(f"listing the tasks of {deployment}: {wanted}, and {sent} were sent")
        namespace, _, server_name = deployment.partition("/")
        return [
            Task(
                env_name=deployment,
                deployment_name=deployment,
                server_name=server_name,
                environment_name=listed.env_name or self.endpoint.variant,
                namespace=namespace,
                split=split,
                index=index,
                task_spec=spec,
            )
            for index, spec in enumerate(listed.tasks, start)
        ]

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        return await retried(
            lambda: self._ask_once(method, path, body),
            FAULTS,
            lambda fault: not isinstance(fault, Refusal) or fault.status in AGAIN,
            Waiting(longest_wish=LONGEST_WISH),
        )

    async def _ask_once(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        endpoint, channel = self.endpoint, Channel(self.endpoint.http, most=LISTING_BYTES)
        sid = await open_session(channel, endpoint.headers(""), {})
        try:
            return await channel.request(method, path, endpoint.headers(sid), body)
        finally:
            with suppress(Refusal, UnsafeAnswer, aiohttp.ClientError, OSError):  # the server forgets it by itself
                async with asyncio.timeout(FORGET_SECONDS):
                    await channel.request("POST", "/delete_session", endpoint.headers(sid), None)


class TaskListing(Struct, frozen=True, kw_only=True):
    """One split of one environment: `size` tasks."""

    env_name: str
    split: str
    size: int
    remote: RemoteEnvironment


async def list_tasks(listing: TaskListing, indices: Sequence[int] | None = None) -> AsyncGenerator[Task]:
    """Yield the tasks of `listing` at `indices` (all by default), in ascending order of index, page by page.

    Raises:
        SessionError: the server fails.
    """
    wanted = range(listing.size) if indices is None else sorted(indices)
    for _, page in groupby(wanted, lambda index: index // PAGE):
        parts = [[*page]]
        while parts:
            part = parts.pop()
            with as_session_error(f"listing the tasks of {listing.env_name}"):
                try:
                    async with asyncio.timeout(LISTING_SECONDS):
                        tasks = await listing.remote.get_task_range(listing.split, part[0], part[-1] + 1)
                except UnsafeAnswer:  # too large, maybe for being so many
                    if len(part) == 1:
                        raise
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                    continue
            for index in part:
                yield tasks[index - part[0]]


async def served_at(url: str) -> tuple[str, ...]:
    """Return the environments of the server at `url`. Sends no key."""
    async with HttpClient(url) as http:
        return await list_served(Channel(http))


async def list_served(channel: Channel) -> tuple[str, ...]:
    """Return the variants that a server serves, sorted."""
    names = msgspec.convert(await channel.request("GET", "/list_environments", {}, None), list[str])
    return tuple(sorted({name.lower() for name in names if is_path_name(name)}))
