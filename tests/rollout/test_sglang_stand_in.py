"""The SGLang stand-in on the wire: what a trainer or an engine client sees, without our own client in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from orl_rollout.testing import Fault, FaultKind, SglangServer, logprobs_of

PROMPT = [5, 6, 7]
ANSWER = [11, 12, 2]


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
        sampling = {name: body.pop(name) for name in ("max_new_tokens", "stop_token_ids", "ignore_eos") if name in body}
        status, answer = await self.post("/generate", {"input_ids": ids, "sampling_params": sampling, **body})
        assert status == 200, answer
        return answer


@asynccontextmanager
async def serving(script: Any = None, **options: Any) -> AsyncGenerator[tuple[SglangServer, Client]]:
    policy = script or (lambda ids, sampling: ANSWER)
    async with asyncio.timeout(5), SglangServer(policy, **options) as server, aiohttp.ClientSession() as http:
        yield server, Client(server, http)


# /generate


async def test_an_answer_has_the_shape_of_sglang() -> None:
    async with serving() as (_, client):
        answer = await client.generate(return_logprob=True, rid="r1", stop_token_ids=[2])
    assert answer["output_ids"] == ANSWER
    meta = answer["meta_info"]
    assert meta["id"] == "r1"
    assert meta["finish_reason"] == {"type": "stop", "matched": 2}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 3, 0)
    assert meta["weight_version"] == "default"
    logprobs = logprobs_of(PROMPT, ANSWER)
    assert meta["output_token_logprobs"] == [[logprobs[0], 11, None], [logprobs[1], 12, None], [logprobs[2], 2, None]]
    assert meta["output_token_logprobs_length"] == 3


async def test_logprobs_come_only_where_they_are_asked_for() -> None:
    async with serving() as (_, client):
        answer = await client.generate()
    assert "output_token_logprobs" not in answer["meta_info"]


def test_logprobs_tell_every_id_and_place_apart() -> None:
    values = logprobs_of([], list(range(50)) * 20)
    assert len(set(values)) > 900
    assert all(value < 0 for value in values)
    assert logprobs_of([1, 2], [3, 4])[1:] == logprobs_of([1, 2, 3], [4])


async def test_a_policy_sees_the_ids_and_the_sampling_parameters() -> None:
    def policy(ids: list[int], sampling: dict[str, Any]) -> list[int]:
        return [*ids, sampling["max_new_tokens"]]

    async with serving(policy) as (_, client):
        answer = await client.generate(max_new_tokens=9)
    assert answer["output_ids"] == [5, 6, 7, 9]


async def test_a_script_is_answered_in_order_and_then_refused() -> None:
    async with serving([[1], [2, 3]]) as (_, client):
        assert (await client.generate())["output_ids"] == [1]
        assert (await client.generate())["output_ids"] == [2, 3]
        status, body = await client.post("/generate", {"input_ids": PROMPT})
    assert (status, body["error"]["message"]) == (400, "the script has no answer left")


@pytest.mark.parametrize(
    ("sampling", "ids", "finish"),
    [
        ({"stop_token_ids": [12]}, [11, 12], {"type": "stop", "matched": 12}),
        ({"stop_token_ids": [12], "ignore_eos": True}, ANSWER, {"type": "stop", "matched": 2}),
        ({"stop_token_ids": [99]}, ANSWER, {"type": "stop", "matched": 2}),
        ({"max_new_tokens": 1}, [11], {"type": "length", "length": 1}),
        ({"max_new_tokens": 2, "stop_token_ids": [12]}, [11, 12], {"type": "length", "length": 2}),
        ({"max_new_tokens": 3, "stop_token_ids": [2]}, ANSWER, {"type": "length", "length": 3}),
        ({"max_new_tokens": 4, "stop_token_ids": [2]}, ANSWER, {"type": "stop", "matched": 2}),
        ({"max_new_tokens": 0}, [], {"type": "length", "length": 0}),
        ({"max_new_tokens": None}, ANSWER, {"type": "stop", "matched": 2}),
    ],
)
async def test_generation_ends_where_sglang_ends_it(sampling: Any, ids: list[int], finish: dict[str, Any]) -> None:
    async with serving() as (_, client):
        answer = await client.generate(**sampling)
    assert (answer["output_ids"], answer["meta_info"]["finish_reason"]) == (ids, finish)


async def test_without_a_limit_the_default_is_128() -> None:
    async with serving([[1] * 500, [1] * 500], context_tokens=200) as (_, client):
        assert len((await client.generate())["output_ids"]) == 128
        assert len((await client.generate(max_new_tokens=None))["output_ids"]) == 197


async def test_routed_experts_cover_every_id_but_the_last() -> None:
    async with serving() as (_, client):
        answer = await client.generate(return_routed_experts=True)
    assert len(answer["meta_info"]["routed_experts"]) == 28  # five int32 in base64


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input_ids": []}, 400, "cannot be empty"),
        ({"input_ids": [1] * 50}, 400, "The input (50 tokens) is longer than the model's context length"),
        ({"input_ids": [1] * 20, "sampling_params": {"max_new_tokens": 31}}, 400, "Requested token count exceeds"),
        ({"input_ids": [1], "sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}}, 400, "min_new_tokens"),
        ({"input_ids": [1], "sampling_params": {"seed": 3}}, 500, "unexpected keyword argument: seed"),
        ({"input_ids": [1], "sampling_params": {"stop": ["x"]}}, 400, "unavailable"),
        ({"input_ids": [1], "stream": True}, 400, "unavailable"),
        ({"input_ids": [[1], [2]]}, 400, "input_ids"),
        ({}, 400, "input_ids"),
        ([], 400, "object"),
    ],
    ids=str,
)
async def test_a_request_is_refused_as_sglang_does(body: Any, status: int, message: str) -> None:
    async with serving(context_tokens=50) as (_, client):
        answered, refusal = await client.post("/generate", body)
    text = refusal["error"]["message"] if status == 400 else refusal["message"]
    assert answered == status
    assert message in text


async def test_requests_are_recorded_with_their_headers() -> None:
    async with serving() as (server, client):
        await client.generate()
        async with client.http.post(f"{server.url}/generate", json={"input_ids": [1]}, headers={"X-One": "1"}):
            pass
    assert [request.index for request in server.requests] == [0, 1]
    assert server.requests[0].body["input_ids"] == PROMPT
    assert server.requests[1].headers["x-one"] == "1"


# The prefix cache


async def test_cached_tokens_are_the_longest_prefix_shared_with_any_request() -> None:
    async with serving() as (_, client):
        cached = [
            (await client.generate(ids))["meta_info"]["cached_tokens"]
            for ids in ([1, 2, 3], [1, 2, 3, *ANSWER, 4], [1, 2, 9], [1, 2, 3], [8], [1, 2, 9, *ANSWER], [2, 3])
        ]
    assert cached == [0, 6, 2, 2, 0, 5, 0]


async def test_new_weights_empty_the_cache() -> None:
    async with serving() as (server, client):
        await client.generate()
        server.update_weights("2")
        meta = (await client.generate())["meta_info"]
    assert (meta["cached_tokens"], meta["weight_version"]) == (0, "2")


async def test_the_cache_can_be_flushed_only_while_nothing_runs() -> None:
    async with serving(faults=[Fault(kind=FaultKind.HANG, at=1)]) as (server, client):
        await client.generate()
        async with asyncio.TaskGroup() as group:
            group.create_task(client.generate())
            await server.until_running(1)
            assert (await client.post("/flush_cache", None))[0] == 400
            server.abort()
        assert (await client.get("/flush_cache"))[0] == 200
        assert (await client.generate())["meta_info"]["cached_tokens"] == 0


# Time and aborts


async def test_sampling_takes_its_time_side_by_side() -> None:
    async with serving(token_seconds=0.01) as (_, client):
        started = time.monotonic()
        await asyncio.gather(*(client.generate() for _ in range(20)))
        assert 0.03 <= time.monotonic() - started < 0.5


async def test_abort_all_returns_what_was_sampled() -> None:
    async with serving([[4] * 1000], token_seconds=0.005) as (_, client):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(client.generate(return_logprob=True, max_new_tokens=1000))
            await asyncio.sleep(0.05)
            assert await client.post("/abort_request", {"abort_all": True}) == (200, "")
        answer = running.result()
    made = answer["output_ids"]
    assert 1 <= len(made) < 1000
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]] == logprobs_of(PROMPT, made)


async def test_a_request_aborted_before_its_first_id_has_no_logprobs() -> None:
    async with serving(faults=[Fault(kind=FaultKind.HANG)]) as (server, client), asyncio.TaskGroup() as group:
        running = group.create_task(client.generate(return_logprob=True))
        await server.until_running(1)
        await client.post("/abort_request", {"abort_all": True})
    assert running.result()["output_ids"] == []
    assert "output_token_logprobs" not in running.result()["meta_info"]


async def test_a_known_request_id_is_aborted_by_prefix() -> None:
    async with serving(faults=[Fault(kind=FaultKind.HANG)]) as (server, client), asyncio.TaskGroup() as group:
        for rid in ("7", "70", "8"):
            group.create_task(client.generate(rid=rid))
        await server.until_running(3)
        await client.post("/abort_request", {"rid": "unknown"})
        assert server.running == 3
        await client.post("/abort_request", {"rid": "7"})
        await server.until_running(1)
        server.abort()


async def test_a_request_id_is_taken_once() -> None:
    async with serving(faults=[Fault(kind=FaultKind.HANG)]) as (server, client), asyncio.TaskGroup() as group:
        group.create_task(client.generate(rid="7"))
        await server.until_running(1)
        status, _ = await client.post("/generate", {"input_ids": PROMPT, "rid": "7"})
        server.abort()
    assert status == 400


async def test_a_client_that_goes_away_aborts_its_request() -> None:
    async with serving(faults=[Fault(kind=FaultKind.HANG)]) as (server, client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.generate()
        await server.until_running(0)
        assert server.disconnected == 1


async def test_closing_does_not_wait_for_hanging_requests() -> None:
    async with asyncio.timeout(2), aiohttp.ClientSession() as http:
        async with SglangServer([ANSWER], faults=[Fault(kind=FaultKind.HANG)]) as server:
            request = asyncio.ensure_future(Client(server, http).generate())
            await server.until_running(1)
        with pytest.raises(aiohttp.ClientError):
            await request


# What a trainer's host asks


async def test_a_server_lists_itself_as_the_router_lists_workers() -> None:
    async with serving() as (server, client):
        status, body = await client.get("/workers")
    assert status == 200
    assert [worker["url"] for worker in body["workers"]] == [server.url]


async def test_loads_count_what_is_running() -> None:
    async with serving(faults=[Fault(kind=FaultKind.HANG)]) as (server, client):
        async with asyncio.TaskGroup() as group:
            group.create_task(client.generate())
            await server.until_running(1)
            _, busy = await client.get("/v1/loads?include=core")
            server.abort()
        _, idle = await client.get("/v1/loads?include=core")
    assert [body["loads"][0]["num_total_reqs"] for body in (busy, idle)] == [1, 0]
    assert [body["aggregate"]["total_reqs"] for body in (busy, idle)] == [1, 0]


async def test_health_and_model_info() -> None:
    async with serving() as (server, client):
        server.update_weights("3")
        assert (await client.get("/health"))[0] == (await client.get("/health_generate"))[0] == 200
        assert (await client.get("/model_info"))[1]["weight_version"] == "3"


# Faults


async def test_a_status_fault_hits_its_request_and_takes_nothing_from_the_script() -> None:
    async with serving([[1]], faults=[Fault(kind=FaultKind.STATUS, at=0, status=503, message="full")]) as (_, client):
        status, body = await client.post("/generate", {"input_ids": PROMPT})
        assert (status, body["message"], body["code"]) == (503, "full", 503)
        assert (await client.generate())["output_ids"] == [1]


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.RESET_MID_BODY])
async def test_a_reset_breaks_the_connection(kind: FaultKind) -> None:
    async with serving(faults=[Fault(kind=kind, at=0)]) as (_, client):
        with pytest.raises((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
            await client.generate()
        assert (await client.generate())["output_ids"] == ANSWER


async def test_a_malformed_body_is_complete_and_no_json() -> None:
    async with serving(faults=[Fault(kind=FaultKind.MALFORMED)]) as (_, client):
        with pytest.raises(ValueError, match="Expecting"):
            await client.generate()


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        (FaultKind.SHORT_LOGPROBS, 12),
        (FaultKind.NAN_LOGPROBS, None),
        (FaultKind.MISALIGNED_LOGPROBS, 3),
        (FaultKind.MISSING_LOGPROBS, "missing"),
    ],
)
async def test_damaged_logprobs(kind: FaultKind, last: Any) -> None:
    async with serving(faults=[Fault(kind=kind)]) as (_, client):
        answer = await client.generate(return_logprob=True)
    triples = answer["meta_info"].get("output_token_logprobs", [["missing", "missing"]])
    assert answer["output_ids"] == ANSWER
    assert last in triples[-1]


async def test_an_abort_fault_returns_as_many_ids_as_it_says() -> None:
    faults = [Fault(kind=FaultKind.ABORT, at=0), Fault(kind=FaultKind.ABORT, at=1, tokens=2)]
    async with serving(faults=faults) as (_, client):
        answers = [await client.generate() for _ in range(3)]
    assert [len(answer["output_ids"]) for answer in answers] == [0, 2, 3]
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort", "abort", "stop"]
