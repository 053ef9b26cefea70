"""Rollouts in several processes (`rollout.workers`): one event loop plays about 450 turns a second.

Each process has a runtime and a journal of its own, and its share of each limit. The breaker is one, here. A process
that dies ends the run; what it had recorded stays on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import Any

from msgspec import structs
from orl_core.config import RunConfig
from orl_core.errors import OrlError, RunAborted, expect

from orl_rollout.edge.children import piped
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.engine_connection import EngineClient
from orl_rollout.logs import keep_out
from orl_rollout.loop.engine import Engine
from orl_rollout.recognised_engine import RecognisedEngine
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime import worker
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_rollout.runtime.stack import open_runtime, spare_collector

CANCEL_SECONDS = 20.0  # for a rollout that is cancelled: its session closes in 15
EXIT_SECONDS = 5.0  # from the end of a process's pipe to its exit code


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
            fault = await worker.receive(self._reader)
        except worker.GONE:
            fault = await self._ending()
        if fault:
            raise fault

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        """Play there. A rollout that is cancelled is cancelled there, and its session is closed on return."""
        if self._fault:
            raise self._fault
        number = next(self._numbers)
        answer = self.asked[number] = asyncio.get_running_loop().create_future()
        worker.send(self.writer, (number, request, pickle.dumps(engine)))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            worker.send(self.writer, (number, None, b""))
            await asyncio.wait({answer}, timeout=CANCEL_SECONDS)
            raise
        finally:
            del self.asked[number]

    async def listen(self, breaker: CircuitBreaker) -> None:
        """Hand answers over, and let `breaker` count, until the process ends."""
        with suppress(*worker.GONE):
            while True:
                number, answer = await worker.receive(self._reader)
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
        expect(EngineClient | RecognisedEngine, "engine", engine, " at an address, or set `rollout.workers` to 1")
        return await min(self._workers, key=lambda each: len(each.asked)).play(request, engine)

    async def close(self) -> None:
        """Let each process cancel its rollouts, and close all it has, in bounded time."""
        for each in self._workers:
            with suppress(OSError):  # it died
                each.writer.write_eof()
        try:
            await asyncio.wait(self._listening, timeout=worker.CLOSE_SECONDS)
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
            process, pipe = life.enter_context(piped(worker.__name__))
            reader, writer = await asyncio.open_unix_connection(sock=pipe, limit=worker.BUFFER_BYTES)
            life.callback(writer.close)
            worker.send(writer, (share_of(config, place), checkpoint, folder, group_size))
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
