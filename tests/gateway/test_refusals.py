"""What the gateway refuses before a dialect obeys it: paths, tokens, encodings, and JSON of any shape. Never a 500."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from orl_gateway.dialects.client_api import ClientApi
from orl_gateway.dialects.exchange import RequestRefused

from tests.gateway.agents import Model
from tests.gateway.test_dialects import APIS, golden, wire
from tests.gateway.test_server import HELLO, served

ODD: tuple[Any, ...] = (None, True, 0, -1, 1.5, 10**30, "", "x", [], {}, [None], [[]], [{}], {"type": {}}, {"type": []})


def odd_bodies(body: Any) -> Iterator[dict[str, Any]]:
    """Yield copies of a body with one value of it, at any depth, replaced by an odd one."""

    def paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        for key in [*tree] if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
            yield (*path, key)
            yield from paths(tree[key], (*path, key))

    for *above, key in paths(body):
        for odd in ODD:
            changed = copy.deepcopy(body)
            place = changed
            for step in above:
                place = place[step]
            place[key] = odd
            yield changed


@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_json_of_any_shape_is_read_or_refused(api: ClientApi) -> None:
    for case in golden(api.name)["requests"]:
        for body in odd_bodies(case["wire"]):
            with suppress(RequestRefused):
                api.read(wire(body))


@pytest.mark.parametrize(
    ("method", "path", "status", "subject"),
    [
        ("POST", "/chat/completions", 404, "end in `/v1`"),
        ("POST", "/v1/v1/chat/completions", 404, "twice"),
        ("POST", "/v1/completions", 404, "/v1/completions is not served"),
        ("GET", "/v1/models/orl", 404, "/v1/models"),
        ("GET", "/v1/chat/completions", 405, "GET"),
        ("GET", "/mcp", 405, "GET"),
        ("POST", "", 404, "not served"),
    ],
)
async def test_error_of_a_path_is_that_of_the_api(method: str, path: str, status: int, subject: str) -> None:
    async with served(Model()) as play, aiohttp.ClientSession() as http:
        for headers, kind in (({}, None), ({"anthropic-version": "2023-06-01"}, "error")):
            answer = await http.request(method, play.url + path, json={}, headers=headers)
            body = await answer.json()
            assert (answer.status, body.get("type")) == (status, kind)
            assert subject in body["error"]["message"]
            assert play.token not in body["error"]["message"]
            assert ("POST" in answer.headers.get("Allow", "")) is (status == 405)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens", "/mcp"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_encoded_body_is_refused(path: str, encoding: str) -> None:
    async with served(Model()) as play, aiohttp.ClientSession() as http:
        data = gzip.compress(json.dumps(HELLO).encode())
        answer = await http.post(play.url + path, data=data, headers={"Content-Encoding": encoding})
        assert answer.status == 415
        assert encoding in (await answer.json())["error"]["message"]
        assert (await http.post(f"{play.url}/v1/chat/completions", json=HELLO)).status == 200


@pytest.mark.parametrize(("origin", "status"), [("http://[", 400), ("http://[::1", 400), ("[", 403), ("null", 403)])
async def test_odd_origin_is_refused(origin: str, status: int) -> None:
    async with served(Model()) as play, aiohttp.ClientSession() as http:
        answer = await http.post(f"{play.url}/mcp", data=b"{}", headers={"Origin": origin})
        assert answer.status == status
