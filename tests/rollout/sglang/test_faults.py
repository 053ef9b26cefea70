"""SglangEngine when something goes wrong: what it retries, how long it waits, and how it ends."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web
from orl_core.errors import EngineError
from orl_rollout.edge.http import ERROR_BYTES
from orl_rollout.engine_connection import Timeouts
from orl_rollout.sglang.client import SglangEngine
from orl_testing import Fault, FaultKind

from tests.kit.serving import HANGS, PROMPT, SAMPLING, answering, leaving_no_task, replying, serving


async def test_connection_closed_while_idle_is_replaced() -> None:
    """Two generations on a server that closes after each answer, without telling."""
    answers = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal answers
        answers += 1
        await request.read()
        response = await replying()(request)
        await response.prepare(request)
        await response.write_eof()
        assert request.transport is not None
        request.transport.close()
        return response

    async with answering(handler) as engine:
        for _ in range(3):
            assert (await engine.generate(PROMPT, {}, key="a")).token_ids == (8,)
    assert answers == 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no message"),
        (b"plain", "plain"),
        (b'{"error": 3}', '{"error": 3}'),
        (b"\xff " * 999, "\ufffd " * 148 + "\ufffd"),
        (b" " * (ERROR_BYTES - 20) + b"k" * 41, "no message"),
    ],
)
async def test_the_message_of_any_error_body_is_one_bounded_line(body: bytes, message: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=400, body=body)

    async with answering(handler) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.generate(PROMPT, {}, key="a")
    assert str(caught.value).endswith(f"HTTP 400: {message}")


async def test_a_redirect_is_not_followed() -> None:
    async def handler(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with answering(handler) as engine:
        with pytest.raises(EngineError, match="HTTP 307"):
            await engine.generate(PROMPT, {}, key="a")


async def test_cancelling_ends_a_pause_between_attempts() -> None:
    async with serving(Fault(kind=FaultKind.STATUS), retry=3600) as (server, engine):
        request = asyncio.ensure_future(engine.generate(PROMPT, SAMPLING, key="a"))
        while server.received < 3:
            await asyncio.wait([request], timeout=0.01)
        cancelled = time.monotonic()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert time.monotonic() - cancelled < 10


async def test_cancelling_a_long_upload_leaves_nothing_behind() -> None:
    """A server that does not read: the body fills the sockets' buffers and no more."""
    asked, over = asyncio.Event(), asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()
        writer.transport.abort()

    async with leaving_no_task(), asyncio.timeout(HANGS), await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with SglangEngine(url, context_tokens=4_000_000) as engine:
            request = asyncio.ensure_future(engine.generate([123456] * 3_000_000, {}, key="a"))
            await asked.wait()
            await asyncio.wait([request], timeout=0.05)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
        over.set()


# Deadlines


async def test_a_trickle_is_given_up_when_the_whole_takes_too_long() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    async with answering(handler, timeouts=Timeouts(read=60, total=0.2)) as engine:
        with pytest.raises(EngineError, match=r"no whole answer within 0\.2 s"):
            await engine.generate(PROMPT, {}, key="a")


async def test_deadline_is_of_one_attempt_without_pauses() -> None:
    started = time.monotonic()

    async def handler(request: web.Request) -> web.Response:
        return await replying()(request) if time.monotonic() > started + 0.8 else web.Response(status=503)

    async with answering(handler, timeouts=Timeouts(connect=0.5, read=0.5, total=0.5, retry=60)) as engine:
        assert (await engine.generate(PROMPT, {}, key="a")).token_ids == (8,)


async def test_no_request_waits_for_anothers_end() -> None:
    """With more requests than a connection pool usually has, each one's deadline counts its own time alone."""
    timeouts = Timeouts(read=HANGS, total=HANGS)
    async with serving(Fault(kind=FaultKind.HANG), timeouts=timeouts) as (server, engine):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.generate(PROMPT, SAMPLING, key=str(n))) for n in range(150)]
            await server.until_running(150)
            assert server.connections == 150
            server.abort()
        assert all(task.result().finish_reason == "abort" for task in tasks)
