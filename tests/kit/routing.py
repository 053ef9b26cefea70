"""SGLang's own router, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.kit.serving import free_port

ROUTER = """
import json, sys
from sglang_router.router import Router
from sglang_router.router_args import RouterArgs
Router.from_args(RouterArgs(**json.loads(sys.argv[1]))).start()
"""


@asynccontextmanager
async def router(urls: list[str], **options: Any) -> AsyncGenerator[str]:
    """A running router over the workers at `urls`; its own address."""
    port = free_port()
    given = {"worker_urls": urls, "host": "127.0.0.1", "port": port, "prometheus_port": free_port(), **options}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ROUTER, json.dumps(given)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await until_ready(url, len(urls), process)
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_ready(url: str, count: int, process: asyncio.subprocess.Process) -> None:
    """Wait until the router says that all of its workers are healthy."""
    async with aiohttp.ClientSession() as http:
        while process.returncode is None:
            try:
                async with http.get(f"{url}/workers") as response:
                    workers = (await response.json())["workers"]
                if sum(worker["is_healthy"] for worker in workers) == count:
                    return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.02)
    raise AssertionError(f"the router ended with {process.returncode}")
