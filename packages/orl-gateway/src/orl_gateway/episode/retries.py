"""Repeated requests: a client that got no answer asks again, and must get the same answer, not a second sample.

An equal request joins or replays the first one if the client says that it is a retry, or if nobody got the
first one's answer. Else it is a second sample. The module knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from orl_gateway.dialects.exchange import ModelRequest, Point, Reply, RequestRefused

T = TypeVar("T")


class _Pending(Struct):
    """One request: its task, how many clients wait for the answer, and whether one of them got it."""

    task: asyncio.Task[Reply]
    waiting: int = 0
    delivered: bool = False


class Retries:
    """The requests of one episode. The tasks belong to it: an answer outlives its client."""

    def __init__(self) -> None:
        self._requests: dict[tuple[Point | None, bytes], _Pending] = {}  # by the conversation, and the other fields
        self._tasks: set[asyncio.Task[Reply]] = set()

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
            pending = self._requests[key] = _Pending(asyncio.ensure_future(until_closed(ask)))
            self._tasks.add(pending.task)
            pending.task.add_done_callback(self._done)
        pending.waiting += 1
        answer = asyncio.shield(pending.task)
        try:
            yield answer
            pending.delivered = True
        finally:
            pending.waiting -= 1
            if not answer.cancel():
                _look_at(answer)

    async def close(self) -> None:
        """Cancel what is still asked for, and wait for its end."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Reply]) -> None:
        self._tasks.discard(task)
        _look_at(task)


def _look_at(answer: asyncio.Future[Reply]) -> None:
    """Read the exception of an answer whose client may be gone: asyncio logs one that nobody reads."""
    if not answer.cancelled():
        answer.exception()


async def until_closed(ask: Callable[[], Awaitable[T]]) -> T:
    """Return what is asked for; the episode's end alone cancels it, and clients that still wait are refused."""
    try:
        return await ask()
    except asyncio.CancelledError as exc:
        raise RequestRefused("the episode is over: end", code="episode_over") from exc


def _failed(task: asyncio.Task[Reply]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
