"""The stand-in for Tinker on a thread of its own, because a run blocks the test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tinker
from orl_testing.tinker.server import TinkerServer

NAMED = hasattr(tinker, "PromptProvenanceSpan")  # each answer has a name: since SDK 0.26
ROOT = Path(__file__).parents[2]


class Served:
    """A stand-in that runs; `do` runs a function or a coroutine on its loop."""

    def __init__(self, server: TinkerServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server, self._loop = server, loop

    @property
    def url(self) -> str:
        return self.server.url

    def do(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            made = work()
            return await made if asyncio.iscoroutine(made) else made

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)


@contextmanager
def served(folder: Path) -> Generator[Served]:
    started: Future[tuple[Served, asyncio.Event]] = Future()
    folder.mkdir(exist_ok=True)

    async def serve() -> None:
        async with TinkerServer(folder) as server:
            ended = asyncio.Event()
            started.set_result((Served(server, asyncio.get_running_loop()), ended))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    one, ended = started.result(30)
    try:
        yield one
    finally:
        one.do(ended.set)
        thread.join(10)
