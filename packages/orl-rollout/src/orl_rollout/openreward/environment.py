"""An environment on its server: its splits, how many tasks they have, and the tasks themselves.

Each request has a short session of its own, because the platform routes requests by session. The SDK's client is not
used: it follows redirects with the key in a header and reads answers of any size. A listing changes nothing on the
server, so it is retried. The module knows nothing of configurations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import aiohttp
import msgspec
from msgspec import Meta, Struct
from orl_core.errors import SessionAnswerError
from orl_core.names import PathName

from orl_rollout.edge import retry
from orl_rollout.edge.http import UnsafeAnswer
from orl_rollout.edge.retry import Waiting, retried
from orl_rollout.openreward.transport import FAULTS, Channel, Endpoint, Refusal, open_session

LISTING_BYTES = 1 << 25  # of one answer
LONGEST_WISH = 10.0  # seconds: the longest Retry-After that is obeyed
AGAIN = frozenset({429, 502, 503, 504})  # statuses of a busy server or of a proxy before it
FORGET_SECONDS = 5.0  # for deleting the session of a question


class RemoteTask(Struct, frozen=True, kw_only=True):
    """A task as its server lists it. `environment_name` is the class that serves it (the variant), "" if unknown."""

    environment_name: str
    task_spec: dict[str, Any]


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

    @property
    def deployment_name(self) -> str:
        """Return its name on the platform, `Organization/Environment`."""
        return self.endpoint.deployment

    async def version(self) -> ServerVersion:
        """Return the version of its server, and of the build that runs there."""
        return msgspec.convert(await self._ask("GET", "/version", None, own=False), ServerVersion)

    async def list_splits(self) -> list[str]:
        """Return the names of its splits."""
        splits = msgspec.convert(await self._ask("GET", "/splits", None), list[_Split | str])
        return [split if isinstance(split, str) else split.name for split in splits]

    async def num_tasks(self, split: str) -> int:
        """Return how many tasks `split` has."""
        return msgspec.convert(await self._ask("POST", "/num_tasks", {"split": split}), _Count).num_tasks

    async def get_task_range(self, split: str, start: int, stop: int) -> list[RemoteTask]:
        """Return the tasks of `split` from `start` up to `stop`.

        Raises:
            SessionAnswerError: the server sends more or fewer than were asked for.
        """
        tasks = await self._tasks("/task_range", {"split": split, "start": start, "stop": stop})
        if len(tasks) != stop - start:
            wanted = f"{stop - start} tasks from {start} were asked for"
            raise SessionAnswerError(
                f"listing the tasks of {self.deployment_name}: {wanted}, and {len(tasks)} were sent"
            )
        return tasks

    async def list_tasks(self, split: str) -> list[RemoteTask]:
        """Return all tasks of `split`, from a server that cannot count them."""
        return await self._tasks("/tasks", {"split": split})

    async def _tasks(self, name: str, body: Mapping[str, Any]) -> list[RemoteTask]:
        listed = msgspec.convert(await self._ask("POST", name, body), _Tasks)
        served = listed.env_name or self.endpoint.variant
        return [RemoteTask(environment_name=served, task_spec=spec) for spec in listed.tasks]

    async def _ask(self, method: str, name: str, body: Mapping[str, Any] | None, *, own: bool = True) -> Any:
        """Ask the environment; `own` tells whether the request is its own or its server's."""
        path = self.endpoint.path(name) if own else name
        return await retried(
            lambda: self._ask_once(method, path, body),
            FAULTS,
            lambda fault: not isinstance(fault, Refusal) or fault.status in AGAIN,
            Waiting(pauses=retry.PAUSES, longest_wish=LONGEST_WISH),
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
