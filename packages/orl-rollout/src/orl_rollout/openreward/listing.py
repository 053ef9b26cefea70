"""List the tasks of a split, page by page, as rows of tasks.jsonl. It knows nothing of drawing or of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from orl_core.errors import ConfigError, cut
from orl_core.task import Task

from orl_rollout.edge.http import UnsafeAnswer
from orl_rollout.openreward.client import OpenRewardClient
from orl_rollout.openreward.environment import RemoteEnvironment, RemoteTask
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.transport import Refusal

PAGE = 1_000  # tasks in one request
LISTING_SECONDS = 900.0  # for one request of a listing: a server may be minutes in starting


@dataclass(frozen=True, kw_only=True)
class TaskListing:
    """One split of one environment: `size` tasks, `tasks` themselves where the server only lists them all at once."""

    env_name: str
    split: str
    size: int
    remote: RemoteEnvironment
    tasks: tuple[Task, ...] | None = None


async def open_listing(client: OpenRewardClient, env_name: str, split: str) -> TaskListing:
    """Ask how many tasks a split has.

    Raises:
        ConfigError: the environment has no such split, or is not configured.
        SessionError: the server cannot be reached, or does not serve the environment.
    """
    with as_session_error(f"listing the tasks of {env_name}"):
        async with asyncio.timeout(LISTING_SECONDS):
            remote = await client.environment(env_name)
            splits = await remote.list_splits()
            if split not in splits:
                known = cut(", ".join(splits), 500) or "none"
                raise ConfigError(f"environment `{env_name}` has no split `{split}`; its splits are: {known}")
            try:
                size = await remote.num_tasks(split)
                if size:  # what has no task need not have a first one
                    await remote.get_task_range(split, 0, 1)
            except Refusal as exc:
                if exc.status not in {404, 405}:
                    raise
            else:
                return TaskListing(env_name=env_name, split=split, size=size, remote=remote)
            listed = await remote.list_tasks(split)
    tasks = tuple(_task(env_name, remote, split, None, task) for task in listed)
    return TaskListing(env_name=env_name, split=split, size=len(tasks), remote=remote, tasks=tasks)


async def list_tasks(
    client: OpenRewardClient, listing: TaskListing, indices: Sequence[int] | None = None
) -> AsyncGenerator[Task]:
    """Yield the tasks of `listing` at `indices` (all by default), in ascending order of index, page by page.

    Raises:
        SessionError: the server fails.
    """
    wanted = range(listing.size) if indices is None else sorted(indices)
    if listing.tasks is not None:
        for index in wanted:
            yield listing.tasks[index]
        return
    for page in _pages(wanted):
        parts = [page]
        while parts:
            part = parts.pop()
            first = part[0]
            with as_session_error(f"listing the tasks of {listing.env_name}"):
                try:
                    async with asyncio.timeout(LISTING_SECONDS):
                        remote_tasks = await listing.remote.get_task_range(listing.split, first, part[-1] + 1)
                except UnsafeAnswer:  # too large, maybe for being so many
                    if len(part) == 1:
                        raise
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                    continue
                tasks = [
                    _task(listing.env_name, listing.remote, listing.split, index, remote_tasks[index - first])
                    for index in part
                ]
            for task in tasks:
                yield task


def _pages(indices: Sequence[int]) -> Iterator[list[int]]:
    """Cut ascending `indices` so that no page spans more than PAGE tasks of the listing."""
    page: list[int] = []
    for index in indices:
        if page and index - page[0] >= PAGE:
            yield page
            page = []
        page.append(index)
    if page:
        yield page


def _task(env_name: str, remote: RemoteEnvironment, split: str, index: int | None, task: RemoteTask) -> Task:
    namespace, _, server_name = remote.deployment_name.partition("/")
    return Task(
        env_name=env_name,
        deployment_name=remote.deployment_name,
        server_name=server_name,
        environment_name=task.environment_name,
        namespace=namespace,
        split=split,
        index=index,
        task_spec=dict(task.task_spec),
    )
