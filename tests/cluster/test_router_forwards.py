"""The library of the installed sglang-router names the fields that this router hands to the engine."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from orl_cluster.launch.machine.probe import router_forwards
from orl_testing import SglangServer

from tests.kit.routing import router
from tests.kit.serving import ANSWER, HANGS

FIELDS = ("return_hidden_states", "return_routed_experts")
ASKED = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True}


@pytest.mark.asyncio
async def test_library_tells_what_the_router_forwards() -> None:
    async with (
        asyncio.timeout(HANGS),
        SglangServer(lambda ids, sampling: ANSWER) as engine,
        router([engine.url]) as url,
    ):
        async with aiohttp.ClientSession() as http:
            await http.post(f"{url}/generate", json=ASKED | dict.fromkeys(FIELDS, True))
        (request,) = engine.requests
    assert router_forwards(FIELDS[0])
    assert [router_forwards(name) for name in FIELDS] == [request.body.get(name) is True for name in FIELDS]
