"""SGLang's stand-in and the engine client on it, for the tests of this folder; nothing may be left running after it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web
from orl_core.trajectory import Generation
from orl_rollout.engine_connection import Timeouts
from orl_rollout.sglang.client import SglangEngine
from orl_testing import Fault, SglangServer

PROMPT = [5, 6, 7]
ANSWER = [11, 12, 2]
SAMPLING = {"max_new_tokens": 16, "stop_token_ids": [2]}
HANGS = 60.0  # no test takes so long, but one that hangs


@asynccontextmanager
async def leaving_no_task() -> AsyncGenerator[None]:
    """Run a server that ends with the block."""
    before = asyncio.all_tasks()
    yield
    leaked = asyncio.all_tasks() - before
    assert not (leaked and (await asyncio.wait(leaked, timeout=1))[1])


@asynccontextmanager
async def serving(
    *faults: Fault, retry: float = 0.3, timeouts: Timeouts | None = None, context_tokens: int = 32768, **options: Any
) -> AsyncGenerator[tuple[SglangServer, SglangEngine]]:
    """A server that always answers ANSWER, and an engine with `options` on it."""
    timeouts = timeouts or Timeouts(retry=retry)
    async with (
        leaving_no_task(),
        asyncio.timeout(HANGS),
        SglangServer(lambda ids, sampling: ANSWER, faults=faults, context_tokens=context_tokens) as server,
        SglangEngine(server.url, context_tokens=context_tokens, timeouts=timeouts, **options) as engine,
    ):
        yield server, engine


@asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Any], *, context_tokens: int = 100, timeouts: Timeouts | None = None
) -> AsyncGenerator[SglangEngine]:
    """An engine on a server whose /generate is `handler`."""
    app = web.Application()
    app.router.add_post("/generate", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    async with leaving_no_task(), asyncio.timeout(HANGS), AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        timeouts = timeouts or Timeouts(retry=0.1)
        yield await stack.enter_async_context(SglangEngine(url, context_tokens=context_tokens, timeouts=timeouts))


def replying(**meta: Any) -> Callable[[web.Request], Any]:
    """Return a handler whose answer is well-formed but for `meta`; `output_ids` is a key of its own."""
    output_ids = meta.pop("output_ids", [8])
    finish = {"type": "stop", "matched": 8}
    meta = {"finish_reason": finish, "output_token_logprobs": [[-0.5, 8, None]]} | meta

    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"text": "", "output_ids": output_ids, "meta_info": meta})

    return handler


async def answered(**meta: Any) -> Generation:
    """Ask a server whose answer is well-formed but for `meta`."""
    async with answering(replying(**meta)) as engine:
        return await engine.generate(PROMPT, {}, key="a")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def engine(policy: Any, **settings: Any) -> Generator[str]:
    """An SGLang stand-in on a thread of its own."""
    running: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with SglangServer(policy, **settings) as server:
            running.set_result((server.url, lambda: loop.call_soon_threadsafe(ended.set)))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, end = running.result(10)
    try:
        yield url
    finally:
        end()
        thread.join(10)
