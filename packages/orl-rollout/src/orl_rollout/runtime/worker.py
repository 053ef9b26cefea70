"""One process of `workers`: it plays what its parent asks for, many rollouts at once, with a runtime of its own.

A message is a pickle behind its length. `(number, request, engine)` asks for a rollout, and without a request cancels
it. `(number, answer)` is its outcome or error, or before that a call for the run's breaker, which the parent has.
When the parent closes its end or is killed, all is closed.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from contextvars import ContextVar
from functools import partial
from operator import methodcaller
from typing import Any

from orl_core.errors import OrlError, boundary

from orl_rollout.edge.children import pipe_of_parent
from orl_rollout.loop.engine import Engine
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_rollout.runtime.stack import SharedState

CLOSE_SECONDS = 30.0  # for sessions, which close in 15, and for uploads, which get 11
LENGTH_BYTES = 8
BUFFER_BYTES = 1 << 20
GONE = (EOFError, OSError)  # what `receive` raises if the other end is closed
Tell = Callable[[Any], None]
_NUMBER: ContextVar[int] = ContextVar("_NUMBER")  # of the rollout that a task plays


def send(pipe: asyncio.StreamWriter, message: object) -> None:
    """Write a message. It never waits."""
    content = pickle.dumps(message)
    pipe.write(len(content).to_bytes(LENGTH_BYTES) + content)


async def receive(pipe: asyncio.StreamReader) -> Any:
    """Read the next message."""
    size = int.from_bytes(await pipe.readexactly(LENGTH_BYTES))
    return pickle.loads(await pipe.readexactly(size))  # noqa: S301 - of a process of this run


class RemoteBreaker(CircuitBreaker):
    """Tells the parent what a breaker counts: the one of the run judges."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def saw(self, error: str, *, lost_since: float | None = None) -> None:
        """Count one rollout. The clock is the same in all processes of a machine."""
        self._tell((_NUMBER.get(), methodcaller("saw", error, lost_since=lost_since)))

    def saw_bug(self, error: str) -> None:
        """Count a bug of ours."""
        self._tell((_NUMBER.get(), methodcaller("saw_bug", error)))


class Plays:
    """The rollouts of this process. Clients of engines live as long as `life`."""

    def __init__(self, runtime: Runtime, life: AsyncExitStack, tell: Tell) -> None:
        self._runtime, self._life, self._tell = runtime, life, tell
        self._engines: dict[bytes, Engine] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def obey(self, pipe: asyncio.StreamReader) -> None:
        """Begin and cancel rollouts until the parent closes the pipe. Then cancel all, and wait until they end."""
        with suppress(*GONE):
            while True:
                number, request, engine = await receive(pipe)
                if request is not None:
                    self._tasks[number] = asyncio.create_task(self._play(number, request, engine))
                elif number in self._tasks:
                    self._tasks[number].cancel()
        left = [*self._tasks.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _play(self, number: int, request: RolloutRequest, engine: bytes) -> None:
        """Play, and tell how it ended."""
        answer: object = OrlError("the rollout was cancelled")
        _NUMBER.set(number)
        try:
            with boundary(OrlError, "a bug in orl"):
                if engine not in self._engines:  # a client opens without a wait, so no other rollout comes between
                    client = pickle.loads(engine)  # noqa: S301 - of a process of this run
                    self._engines[engine] = await self._life.enter_async_context(client)
                answer = await self._runtime.play(request, self._engines[engine])
        except OrlError as fault:
            answer = type(fault)(str(fault))
        finally:
            del self._tasks[number]
            self._tell((number, answer))


async def serve(pipe: socket.socket) -> None:
    """Open the runtime that the first message describes, say whether it is open, and play until the pipe closes."""
    reader, writer = await asyncio.open_unix_connection(sock=pipe, limit=BUFFER_BYTES)
    tell = partial(send, writer)
    async with AsyncExitStack() as life:
        life.push_async_callback(_close, writer)  # last: the parent then knows that all is closed
        try:
            with boundary(OrlError, "a bug in orl"):
                state = life.enter_context(closing(SharedState(*await receive(reader))))
                state.breaker = RemoteBreaker(tell)
                client = await life.enter_async_context(OpenRewardClient(state.config, state.open_sessions))
                plays = Plays(state.runtime(client), life, tell)
        except OrlError as fault:
            tell(type(fault)(str(fault)))
            return
        tell(None)
        await plays.obey(reader)


async def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.close()
        await writer.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(pipe_of_parent(CLOSE_SECONDS)))
