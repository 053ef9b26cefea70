"""What an episode does for its clients: its tasks outlive them, and a repeated request gets the same answer.

A client that got no answer asks again, and must not get a second sample. An equal request joins or replays the first
one if the client says that it is a retry, or if nobody got the first one's answer. The module knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs
from orl_rollout.loop.loop import CLOSE_SECONDS

from orl_gateway.dialects.exchange import ModelRequest, Point, Reply, RequestRefused

T = TypeVar("T")


class _Pending(Struct):
    """One request: its task, how many clients wait for the answer, and whether one of them got it."""

    task: asyncio.Task[Reply]
    waiting: int = 0
    delivered: bool = False


class Work:
    """The requests and calls of one episode."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._requests: dict[tuple[Point | None, bytes], _Pending] = {}  # by the conversation, and the other fields

    def start(self, ask: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Start what a client asks for. Only the end of the episode cancels it: clients that still wait are refused."""
        task = asyncio.ensure_future(_until_closed(ask))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    @asynccontextmanager
    async def answer(
        self, request: ModelRequest, ask: Callable[[], Awaitable[Reply]], *, retried: bool
    ) -> AsyncGenerator[asyncio.Future[Reply]]:
        """Yield the answer to `request` to come; the block delivers it. A block that is left by an exception does not.

        `retried` tells that the client says so.
        """
        others = structs.replace(request, messages=(), tools=(), point=None)
        key = request.point, msgspec.json.encode(others, order="deterministic")
        pending = self._requests.get(key)
        if pending is None or not (retried or (not pending.waiting and not pending.delivered)) or _failed(pending.task):
            pending = self._requests[key] = _Pending(self.start(ask))
        pending.waiting += 1
        answer = asyncio.shield(pending.task)
        try:
            yield answer
            pending.delivered = True
        finally:
            pending.waiting -= 1
            if not answer.cancel():
                look_at(answer)

    async def close(self) -> None:
        """Cancel what is under way, and wait for its end in bounded time."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        look_at(task)


def look_at(answer: asyncio.Future[Any]) -> None:
    """Read the exception of an answer whose client may be gone: asyncio logs one that nobody reads."""
    if not answer.cancelled():
        answer.exception()


async def _until_closed(ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await ask()
    except asyncio.CancelledError as exc:
        raise RequestRefused("the episode is over; stop", code="episode_over") from exc


def _failed(task: asyncio.Task[Reply]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
