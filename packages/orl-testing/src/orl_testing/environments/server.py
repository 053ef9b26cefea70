"""The gallery's server: the SDK's own, on loopback, on a thread or (`python -m`) in a process of its own."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from openreward.environments import Environment, Server

from orl_testing.environments import broken, listed, plain
from orl_testing.environments.base import NAN_REWARD
from orl_testing.environments.seeded import drawers

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


START_SECONDS = 60.0  # for another process to import the SDK and listen
GALLERY: tuple[type[Environment], ...] = (
    plain.Echo,
    plain.Indented,
    plain.Terminal,
    plain.Picture,
    plain.Conversation,
    plain.Telltale,
    broken.Failing,
    broken.FailingSetup,
    broken.SlowSetup,
    broken.Hanging,
    broken.HangingTeardown,
    broken.NanReward,
    broken.Trouble,
    listed.Duplicates,
    listed.Endless,
    listed.Compared,
)


class Served:
    """A running server. `requests` are (path, headers) of all that it was asked, names of headers in lower case."""

    def __init__(self, url: str, server: Server, requests: list[tuple[str, dict[str, str]]]) -> None:
        self.url = url
        self.requests = requests
        self._server = server

    @property
    def sessions(self) -> int:
        """Count the environments that are alive on the server."""
        return len(self._server._active_envs)  # pyright: ignore[reportPrivateUsage]

    def count(self, path: str) -> int:
        """Count the requests whose path ends in `path`."""
        return sum(each.endswith(path) for each, _ in self.requests)


@contextmanager
def serve(
    *environments: type[Environment], wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app, seed: int = 0, port: int = 0
) -> Generator[Served]:
    """Serve `environments` (by default all of the gallery, and `drawers(seed)`) on loopback, on a thread.

    `wrap` puts a fault between the server and the wire. The `port` 0 takes a free one.
    """
    server = Server(list(environments or (*GALLERY, drawers(seed))))
    requests: list[tuple[str, dict[str, str]]] = []
    process = _process(_Loose(wrap(server.app), requests), port)
    serving = asyncio.run_coroutine_threadsafe(process.serve(), _loop())
    try:
        deadline = time.monotonic() + START_SECONDS
        while not process.started:
            if serving.done() or time.monotonic() > deadline:
                raise RuntimeError("the server of environments does not start")
            time.sleep(0.005)
        yield Served(_address(process), server, requests)
    finally:
        process.should_exit = True
        serving.result(10)


@contextmanager
def serve_apart(*, seed: int = 0) -> Generator[str]:
    """Serve the gallery on a free loopback port in a process of its own; its address. The process is ended by its id.

    Raises:
        RuntimeError: it does not start.
    """
    command = [sys.executable, "-m", "orl_testing.environments", "--seed", str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        overdue = threading.Timer(START_SECONDS, process.kill)
        overdue.start()
        try:
            address = process.stdout.readline().strip() if process.stdout else ""
            overdue.cancel()
            if not address:
                raise RuntimeError("the server of environments does not start")
            yield address
        finally:
            overdue.cancel()
            process.terminate()


def main() -> None:
    """Serve the gallery until the process is told to end (SIGTERM, Ctrl-C). The first line on stdout is the address."""
    parser = argparse.ArgumentParser(prog="orl_testing.environments", description=main.__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--seed", type=int, default=0, help="of the environment `drawers`")
    options = parser.parse_args()
    server = Server([*GALLERY, drawers(options.seed)])
    asyncio.run(_run(_process(_Loose(server.app, None), options.port)))


async def _run(process: uvicorn.Server) -> None:
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(process.serve())
        while not (process.started or serving.done()):  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        if process.started:
            print(_address(process), flush=True)
            os.dup2(2, 1)  # whoever reads the address need not read the server's log


def _process(app: ASGIApp, port: int) -> uvicorn.Server:
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="critical", ws="none", timeout_graceful_shutdown=1, lifespan="on"
    )
    return uvicorn.Server(config)


def _address(process: uvicorn.Server) -> str:
    return f"http://127.0.0.1:{process.servers[0].sockets[0].getsockname()[1]}"


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all servers of this process: the SDK's server keeps state that only one loop may touch."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="orl-environments", daemon=True).start()
    return loop


class _Loose:
    """Notes requests where asked to, and writes rewards that are not finite as servers in looser languages do."""

    def __init__(self, app: ASGIApp, requests: list[tuple[str, dict[str, str]]] | None) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._requests is not None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._requests.append((scope["path"], headers))

        async def loosely(message: Any) -> None:
            if (number := str(NAN_REWARD).encode()) in (body := message.get("body", b"")):
                message = {**message, "body": body.replace(number, b"NaN")}
            await send(message)

        await self._app(scope, receive, loosely)
