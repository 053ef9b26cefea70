"""A way to a server on which things go wrong: a proxy on loopback that does damage to the requests it is told.

It passes everything else on, byte for byte, and counts what passed. It knows HTTP alone, so that it can be before an
environment server, an engine or a collector alike, and it must not know the clients that are tested with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from msgspec import Struct, field

_OF_ONE_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})


class MishapKind(StrEnum):
    """A fault of a request. The first four never reach the server, the others it has answered in full."""

    STATUS = "status"  # answered with a status by the proxy itself
    HANG = "hang"  # never answered
    RESET = "reset"  # the connection breaks
    DIE = "die"  # it breaks, and from here on nobody listens
    LOSE = "lose"  # the connection breaks before the first byte of the answer
    CUT = "cut"  # it breaks in the middle of the answer's body, which comes in events: after the first
    GARBAGE = "garbage"  # the answer is replaced by bytes that mean nothing


class Mishap(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of requests whose path ends in `path`: the `at`-th (from 0), or every one. The rest is for STATUS."""

    kind: MishapKind
    path: str = ""
    at: int | None = None
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Proxy:
    """A proxy before the server at `upstream`, used as `async with`; `url` is set inside.

    `asked` counts requests by path. The first of `faults` that fits a request is taken; their `at` counts the requests
    that end in their `path`.
    """

    def __init__(self, upstream: str, mishaps: Sequence[Mishap] = ()) -> None:
        self._upstream = upstream
        self._mishaps = tuple(mishaps)
        self._http: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.url = ""
        self.asked: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._http = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None))
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await self._site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stopping is not None:
            await self._stopping
        if self._runner is not None:
            await self._runner.cleanup()
        if self._http is not None:
            await self._http.close()

    def count(self, path: str) -> int:
        """Count the requests whose path ends in `path`."""
        return sum(count for each, count in self.asked.items() if each.endswith(path))

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        if self._stopping is not None:
            return _break(request)
        mishap = self._mishap(request.path)
        self.asked[request.path] += 1
        match mishap.kind if mishap else None:
            case MishapKind.STATUS if mishap:
                return web.json_response({"detail": "a fault"}, status=mishap.status, headers=mishap.headers)
            case MishapKind.HANG:
                await asyncio.Event().wait()
            case MishapKind.RESET:
                return _break(request)
            case MishapKind.DIE:
                self._stopping = asyncio.create_task(self._die())
                return _break(request)
            case _:
                pass
        return await self._forward(request, mishap.kind if mishap else None)

    def _mishap(self, path: str) -> Mishap | None:
        for mishap in self._mishaps:
            if path.endswith(mishap.path) and mishap.at in (None, self.count(mishap.path)):
                return mishap
        return None

    async def _die(self) -> None:
        if self._site is not None:
            await self._site.stop()

    async def _forward(self, request: web.Request, kind: MishapKind | None) -> web.StreamResponse:
        if self._http is None:
            raise RuntimeError("the proxy is used outside of its `async with`")
        headers = _passed(request.headers)
        body = await request.read()
        url = f"{self._upstream}{request.raw_path}"
        async with self._http.request(request.method, url, headers=headers, data=body, allow_redirects=False) as answer:
            if kind in {MishapKind.LOSE, MishapKind.GARBAGE, MishapKind.CUT}:
                whole = await answer.read()
                return await _damaged(request, answer, whole, kind)
            response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
            with suppress(ConnectionResetError):  # the client has heard enough
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
        return response


async def _damaged(
    request: web.Request, answer: aiohttp.ClientResponse, whole: bytes, kind: MishapKind | None
) -> web.StreamResponse:
    """Return the rest of an answer that the server gave in full."""
    if kind is MishapKind.LOSE:
        return _break(request)
    response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
    await response.prepare(request)
    if kind is MishapKind.GARBAGE:
        await response.write(b'\x00\xff{]\n\nevent end data\n\nevent: end\ndata: {"ok": tru\n\n')
        await response.write_eof()
        return response
    first = whole.find(b"\r\n\r\n")
    await response.write(whole[: first + 4] if first >= 0 else whole[: len(whole) // 2])
    return _break(request)


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_HOP}


def _break(request: web.Request) -> web.StreamResponse:
    """Break the connection; what is returned reaches nobody."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
