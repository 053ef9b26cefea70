"""`python -m benchmarks.bare_host.router PORT`: a router that hands every field of a request to the engine.

slime registers its engines: name the router with `--sglang-router-ip 127.0.0.1 --sglang-router-port PORT`. A
conversation stays with its engine.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from itertools import count
from zlib import crc32

import aiohttp
from aiohttp import web

KEY = "x-smg-routing-key"
SESSION = web.AppKey("session", aiohttp.ClientSession)
BYTES = 1 << 30
FOREVER = aiohttp.ClientTimeout(total=None)  # the client waits as long as it likes
workers: dict[str, str] = {}
numbers = count(1)


async def add(request: web.Request) -> web.Response:
    workers[str(next(numbers))] = (await request.json())["url"]
    return web.json_response({})


async def show(_: web.Request) -> web.Response:
    return web.json_response({"workers": [{"id": key, "url": url, "is_healthy": True} for key, url in workers.items()]})


async def remove(request: web.Request) -> web.Response:
    workers.pop(request.match_info["id"], None)
    return web.json_response({})


async def forward(request: web.Request) -> web.Response:
    urls = list(workers.values())
    if not urls:
        return web.Response(status=503, text="no engine is registered")
    url, body = urls[crc32(request.headers.get(KEY, "").encode()) % len(urls)], await request.read()
    headers = {"content-type": "application/json"}
    async with request.app[SESSION].request(
        request.method, url + request.path_qs, data=body, headers=headers
    ) as answer:
        return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)


async def session(app: web.Application) -> AsyncGenerator[None]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=FOREVER) as app[SESSION]:
        yield


def main(port: int) -> None:
    """Serve until a signal."""
    app = web.Application(client_max_size=BYTES)
    app.cleanup_ctx.append(session)
    app.router.add_post("/workers", add)
    app.router.add_get("/workers", show)
    app.router.add_delete("/workers/{id}", remove)
    app.router.add_route("*", "/{path:.*}", forward)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
