"""A client of the SGLang stand-in without our own engine client in between: JSON as it is on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from orl_testing import SglangServer

from tests.kit.serving import ANSWER, HANGS, PROMPT, leaving_no_task


class Client:
    """Posts and gets JSON; every method returns (status, body)."""

    def __init__(self, server: SglangServer, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.server.url + path) as response:
            return response.status, await response.json() if "json" in response.content_type else await response.text()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        async with self.http.post(self.server.url + path, json=body) as response:
            return response.status, await response.json() if "json" in response.content_type else await response.text()

    async def generate(self, ids: Any = PROMPT, **body: Any) -> dict[str, Any]:
        names = ("max_new_tokens", "stop_token_ids", "ignore_eos")
        sampling = {name: body.pop(name) for name in names if name in body}
        status, answer = await self.post("/generate", {"input_ids": ids, "sampling_params": sampling, **body})
        assert status == 200, answer
        return answer


@asynccontextmanager
async def standing(script: Any = None, **options: Any) -> AsyncGenerator[tuple[SglangServer, Client]]:
    policy = script or (lambda ids, sampling: ANSWER)
    async with (
        leaving_no_task(),
        asyncio.timeout(HANGS),
        SglangServer(policy, **options) as server,
        aiohttp.ClientSession() as http,
    ):
        yield server, Client(server, http)
