"""Rollouts in several processes (`rollout.workers`): one event loop plays about 450 turns a second.

Each process has a runtime and a journal of its own, and its share of each limit. The breaker is one, the parent's.
A process that dies ends the run; what it had recorded stays on disk. Run as a program, the module is such a process
(`serve`).

A message is a pickle behind its length. `(number, request, engine)` asks for a rollout, and without a request cancels
it. `(number, answer)` is its outcome or error, or before that a call for the run's breaker. When the parent closes its
end or is killed, all is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, suppress
from contextvars import ContextVar
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from msgspec import structs
from orl_core.config import RunConfig
from orl_core.errors import OrlError, RunAborted, boundary, expect

from orl_rollout.edge.children import pipe_of_parent, piped
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.engine_connection import EngineClient
from orl_rollout.logs import keep_out
from orl_rollout.loop.engine import Engine
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_rollout.runtime.stack import SharedState, open_runtime, spare_collector

CANCEL_SECONDS = 20.0  # for a rollout that is cancelled: its session closes in 15
EXIT_SECONDS = 5.0  # from the end of a process's pipe to its exit code
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


class _Worker:
    """One process, the pipe to it, and the rollouts that it plays, by number."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self.writer = process, reader, writer
        self.asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._fault: OrlError | None = None

    async def opened(self) -> None:
        """Wait until it has opened its runtime.

        Raises:
            OrlError: it cannot.
        """
        try:
            fault = await receive(self._reader)
        except GONE:
            fault = await self._ending()
        if fault:
            raise fault

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        """Play there. A rollout that is cancelled is cancelled there, and its session is closed on return."""
        if self._fault:
            raise self._fault
        number = next(self._numbers)
        answer = self.asked[number] = asyncio.get_running_loop().create_future()
        send(self.writer, (number, request, pickle.dumps(engine)))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            send(self.writer, (number, None, b""))
            await asyncio.wait({answer}, timeout=CANCEL_SECONDS)
            raise
        finally:
            del self.asked[number]

    async def listen(self, breaker: CircuitBreaker) -> None:
        """Hand answers over, and let `breaker` count, until the process ends."""
        with suppress(*GONE):
            while True:
                number, answer = await receive(self._reader)
                if isinstance(answer, methodcaller):
                    try:
                        answer(breaker)
                    except RunAborted as fault:
                        self._end(number, fault)
                else:
                    self._end(number, answer)
        self._fault = await self._ending()
        for number in self.asked:
            self._end(number, self._fault)

    def _end(self, number: int, answer: Outcome | OrlError) -> None:
        waiting = self.asked.get(number)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, OrlError):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)

    async def _ending(self) -> OrlError:
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, EXIT_SECONDS)
        code = self._process.poll()
        return OrlError(f"a process of `rollout.workers` ended, exit code {code}. What it had recorded is on disk")


class Workers:
    """Plays rollouts in several processes."""

    def __init__(self, workers: Sequence[_Worker], breaker: CircuitBreaker) -> None:
        self._workers = workers
        self._listening = [asyncio.create_task(each.listen(breaker)) for each in workers]

    async def play(self, request: RolloutRequest, engine: Engine, /) -> Outcome:
        """Play a task as `Runtime.play` does, in the process that plays the fewest. The engine is one at an address.

        Raises:
            OrlError: the run must end.
        """
        expect(EngineClient, "engine", engine, " at an address, or set `rollout.workers` to 1")
        return await min(self._workers, key=lambda each: len(each.asked)).play(request, engine)

    async def close(self) -> None:
        """Let each process cancel its rollouts, and close all it has, in bounded time."""
        for each in self._workers:
            with suppress(OSError):  # it died
                each.writer.write_eof()
        try:
            await asyncio.wait(self._listening, timeout=CLOSE_SECONDS)
        finally:
            for task in self._listening:
                task.cancel()


@asynccontextmanager
async def open_workers(
    config: RunConfig, checkpoint: str, folder: str | Path, group_size: int
) -> AsyncGenerator[Workers]:
    """Open the processes that play for the current event loop. They end with the block. See `open_runtime`."""
    keep_out(Scrubber.of(config))
    spare_collector()
    rollout, workers = config.rollout, list[_Worker]()
    breaker = CircuitBreaker(max_error_rate=rollout.max_error_rate, group_size=group_size, patience=rollout.patience)
    async with AsyncExitStack() as life:
        for place in range(rollout.workers):
            process, pipe = life.enter_context(piped(__name__))
            reader, writer = await asyncio.open_unix_connection(sock=pipe, limit=BUFFER_BYTES)
            life.callback(writer.close)
            send(writer, (share_of(config, place), checkpoint, folder, group_size))
            workers.append(_Worker(process, reader, writer))
        for each in workers:
            await each.opened()
        player = Workers(workers, breaker)
        life.push_async_callback(player.close)
        yield player


def open_player(
    config: RunConfig, checkpoint: str, folder: str | Path, group_size: int
) -> AbstractAsyncContextManager[Runtime | Workers]:
    """Open what plays: the processes of `rollout.workers`, or a runtime in this one. See `open_runtime`."""
    if config.rollout.workers > 1:
        return open_workers(config, checkpoint, folder, group_size)
    return open_runtime(config, checkpoint, folder, group_size)


def share_of(config: RunConfig, place: int) -> RunConfig:
    """Return the configuration of the process `place`, with its share of each limit. The shares add up to the limit."""

    def share(most: int | None) -> int | None:
        return most and (most + place) // config.rollout.workers

    environments = {
        name: structs.replace(one, max_concurrency=share(one.max_concurrency))
        for name, one in config.environments.items()
    }
    rollout = structs.replace(config.rollout, workers=1, reward_concurrency=share(config.rollout.reward_concurrency))
    return structs.replace(config, environments=environments, rollout=rollout)


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
