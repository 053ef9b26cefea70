"""The SGLang stand-in and time: slots, queues and pauses, aborts, new weights, and faults."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from orl_testing import Fault, FaultKind, Pace, SglangServer, logprobs_of, seeded_faults

from tests.kit.serving import ANSWER, PROMPT
from tests.rollout.sglang.wire import Client, standing

HANGING = [Fault(kind=FaultKind.HANG)]


# Time


async def test_sampling_takes_its_time_side_by_side() -> None:
    """Sixty-four requests of three ids each: one after the other they would take sixty-four times as long."""
    async with standing(token_seconds=0.1) as (server, client):
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(64):
                group.create_task(client.generate())
            await server.until_running(64)
        assert time.monotonic() - started >= 0.3


async def test_only_what_the_cache_does_not_hold_is_prefilled() -> None:
    async with standing() as (server, client):
        server.pace = Pace(prefill_seconds=0.05)
        first = await client.generate([1] * 6)
        server.pace = Pace(prefill_seconds=3600)
        aborted = asyncio.ensure_future(client.generate([1] * 6))
        await server.until_running(1)
        server.abort()
        server.pace = Pace(prefill_seconds=0.05)
        second = await client.generate([1] * 6)
    assert first["meta_info"]["e2e_latency"] >= 0.3
    assert second["meta_info"]["cached_tokens"] == 5
    assert (await aborted)["output_ids"] == []
    assert (server.prompt_tokens, server.cached_tokens) == (18, 10)


async def test_requests_beyond_the_slots_wait_in_order_of_arrival() -> None:
    async with standing([[1], [2], [3]], faults=HANGING) as (server, client):
        server.pace = Pace(slots=1)
        tasks = []
        for number in range(3):
            tasks.append(asyncio.ensure_future(client.generate(rid=f"r{number}")))
            await server.until_running(number + 1)
        _, busy = await client.get("/v1/loads")
        for number, task in enumerate(tasks):
            assert (server.running, server.waiting) == (3 - number, 2 - number)
            server.abort(f"r{number}")
            assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"
    assert [busy["loads"][0][name] for name in ("num_running_reqs", "num_waiting_reqs")] == [1, 2]


async def test_a_request_beyond_the_queue_is_refused() -> None:
    async with standing(faults=HANGING) as (server, client):
        server.pace = Pace(slots=1, queue=1)
        waiting = [asyncio.ensure_future(client.generate()) for _ in range(2)]
        await server.until_running(2)
        status, body = await client.post("/generate", {"input_ids": PROMPT})
        server.abort()
        await asyncio.gather(*waiting)
    assert (status, body["message"]) == (503, "The request queue is full.")


async def test_a_waiting_request_can_be_aborted() -> None:
    async with standing(faults=HANGING) as (server, client):
        server.pace = Pace(slots=1)
        first = asyncio.ensure_future(client.generate(rid="a"))
        await server.until_running(1)
        second = asyncio.ensure_future(client.generate(rid="b"))
        await server.until_running(2)
        server.abort("b")
        assert (await second)["meta_info"]["finish_reason"]["type"] == "abort"
        server.abort()
        await first


@pytest.mark.slow
async def test_a_pause_keeps_what_runs_and_holds_what_comes() -> None:
    async with standing([[4] * 100, [5]]) as (server, client):
        server.pace = Pace(decode_seconds=0.01)
        running = asyncio.ensure_future(client.generate(max_new_tokens=100))
        await server.until_running(1)
        assert (await client.post("/pause_generation", {"mode": "in_place"}))[1]["status"] == "ok"
        coming = asyncio.ensure_future(client.generate())
        await server.until_running(2)
        done, _ = await asyncio.wait([running, coming], timeout=1.2)
        assert not done
        assert (await client.post("/flush_cache", None))[0] == 400
        assert (await client.post("/continue_generation", {}))[1]["status"] == "ok"
        assert (await running)["output_ids"] == [4] * 100
        assert (await coming)["output_ids"] == [5]


async def test_aborting_pause_returns_samples_and_holds_requests() -> None:
    async with standing(faults=[Fault(kind=FaultKind.HANG, at=0, tokens=2)]) as (server, client):
        running = asyncio.ensure_future(client.generate())
        await server.until_running(1)
        assert (await client.post("/pause_generation", {}))[0] == 200
        assert (await running)["output_ids"] == ANSWER[:2]
        coming = asyncio.ensure_future(client.generate())
        await server.until_running(1)
        await client.post("/continue_generation", {})
        assert (await coming)["output_ids"] == ANSWER
        assert (await client.post("/pause_generation", {"mode": "nap"}))[0] == 400


# Weights


async def test_update_waits_for_running_and_holds_new_requests() -> None:
    faults = [Fault(kind=FaultKind.HANG, at=0)]
    async with standing(faults=faults) as (server, client):
        running = asyncio.ensure_future(client.generate(rid="old"))
        await server.until_running(1)
        body = {"model_path": "next", "weight_version": "2"}
        update = asyncio.ensure_future(client.post("/update_weights_from_disk", body))
        done, _ = await asyncio.wait([update], timeout=0.1)
        assert not done
        coming = asyncio.ensure_future(client.generate())
        await server.until_running(2)
        server.abort("old")
        assert (await running)["meta_info"]["weight_version"] == "default"
        assert (await update)[1] == {"success": True, "message": "", "num_paused_requests": 0}
        assert (await coming)["meta_info"]["weight_version"] == "2"


async def test_what_is_paused_over_an_update_reports_the_new_weights() -> None:
    async with standing(faults=[Fault(kind=FaultKind.HANG, tokens=1)]) as (server, client):
        running = asyncio.ensure_future(client.generate())
        await server.until_running(1)
        await client.post("/pause_generation", {"mode": "retract"})
        _, answer = await client.post("/update_weights_from_disk", {"model_path": "next", "weight_version": "2"})
        assert answer["num_paused_requests"] == 1
        await client.post("/continue_generation", {})
        assert server.running == 1
        server.abort()
        assert (await running)["meta_info"]["weight_version"] == "2"


async def test_a_version_is_only_a_name() -> None:
    async with standing() as (_, client):
        await client.generate()
        assert (await client.post("/update_weight_version", {"new_version": "9"}))[1]["success"]
        meta = (await client.generate())["meta_info"]
    assert (meta["weight_version"], meta["cached_tokens"]) == ("9", 2)


# Aborts


async def test_abort_all_returns_what_was_sampled() -> None:
    async with standing([[4] * 1000], token_seconds=0.02) as (server, client):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(client.generate(return_logprob=True, max_new_tokens=1000))
            await server.until_running(1)
            await asyncio.sleep(0.05)
            assert await client.post("/abort_request", {"abort_all": True}) == (200, "")
        answer = running.result()
    made = answer["output_ids"]
    assert 1 <= len(made) < 1000
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]] == logprobs_of(PROMPT, made)


async def test_a_request_aborted_before_its_first_id_has_no_logprobs() -> None:
    async with standing(faults=[Fault(kind=FaultKind.HANG)]) as (server, client), asyncio.TaskGroup() as group:
        running = group.create_task(client.generate(return_logprob=True))
        await server.until_running(1)
        await client.post("/abort_request", {"abort_all": True})
    assert running.result()["output_ids"] == []
    assert "output_token_logprobs" not in running.result()["meta_info"]


async def test_a_known_request_id_is_aborted_by_prefix() -> None:
    async with standing(faults=[Fault(kind=FaultKind.HANG)]) as (server, client), asyncio.TaskGroup() as group:
        for rid in ("7", "70", "8"):
            group.create_task(client.generate(rid=rid))
        await server.until_running(3)
        await client.post("/abort_request", {"rid": "unknown"})
        assert server.running == 3
        await client.post("/abort_request", {"rid": "7"})
        await server.until_running(1)
        server.abort()


async def test_a_request_id_is_taken_once() -> None:
    async with standing(faults=[Fault(kind=FaultKind.HANG)]) as (server, client), asyncio.TaskGroup() as group:
        group.create_task(client.generate(rid="7"))
        await server.until_running(1)
        status, _ = await client.post("/generate", {"input_ids": PROMPT, "rid": "7"})
        server.abort()
    assert status == 400


async def test_a_client_that_goes_away_aborts_its_request() -> None:
    async with standing(faults=[Fault(kind=FaultKind.HANG)]) as (server, client):
        running = asyncio.ensure_future(client.generate())
        await server.until_running(1)
        running.cancel()
        await server.until_running(0)
        assert server.disconnected == 1


async def test_closing_does_not_wait_for_hanging_requests() -> None:
    async with asyncio.timeout(20), aiohttp.ClientSession() as http:
        async with SglangServer([ANSWER], faults=[Fault(kind=FaultKind.HANG)]) as server:
            request = asyncio.ensure_future(Client(server, http).generate())
            await server.until_running(1)
        with pytest.raises(aiohttp.ClientError):
            await request


# Faults


async def test_status_fault_takes_nothing_from_the_script() -> None:
    async with standing([[1]], faults=[Fault(kind=FaultKind.STATUS, at=0, status=503, message="full")]) as (_, client):
        status, body = await client.post("/generate", {"input_ids": PROMPT})
        assert (status, body["message"], body["code"]) == (503, "full", 503)
        assert (await client.generate())["output_ids"] == [1]


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.RESET_MID_BODY])
async def test_a_reset_breaks_the_connection(kind: FaultKind) -> None:
    async with standing(faults=[Fault(kind=kind, at=0)]) as (_, client):
        with pytest.raises((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)):
            await client.generate()
        assert (await client.generate())["output_ids"] == ANSWER


async def test_a_malformed_body_is_complete_and_no_json() -> None:
    async with standing(faults=[Fault(kind=FaultKind.MALFORMED)]) as (_, client):
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
    async with standing(faults=[Fault(kind=kind)]) as (_, client):
        answer = await client.generate(return_logprob=True)
    triples = answer["meta_info"].get("output_token_logprobs", [["missing", "missing"]])
    assert answer["output_ids"] == ANSWER
    assert last in triples[-1]


async def test_an_abort_fault_returns_as_many_ids_as_it_says() -> None:
    faults = [Fault(kind=FaultKind.ABORT, at=0), Fault(kind=FaultKind.ABORT, at=1, tokens=2)]
    async with standing(faults=faults) as (_, client):
        answers = [await client.generate() for _ in range(3)]
    assert [len(answer["output_ids"]) for answer in answers] == [0, 2, 3]
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort", "abort", "stop"]


async def test_server_that_is_down_refuses_until_it_is_up() -> None:
    async with standing(faults=[Fault(kind=FaultKind.DOWN, at=0)]) as (server, client):
        url = server.url
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.generate()
        for _ in range(3):
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.get("/health")
        await server.up()
        assert (await client.generate())["output_ids"] == ANSWER
        assert (server.url, server.received) == (url, 2)


async def test_a_server_may_be_down_for_a_while() -> None:
    async with standing(faults=[Fault(kind=FaultKind.DOWN, at=0, seconds=0.05)]) as (_, client):
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.generate()
        while True:
            try:
                assert (await client.generate())["output_ids"] == ANSWER
                break
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.01)


async def test_who_breaks_every_connection_counts_them() -> None:
    async with standing(faults=HANGING) as (server, client):
        hanging = [asyncio.ensure_future(client.generate()) for _ in range(3)]
        await server.until_running(3)
        assert server.connections == 3
        await server.down()
        results = await asyncio.gather(*hanging, return_exceptions=True)
        await server.until_running(0)
        assert all(isinstance(result, aiohttp.ClientConnectionError) for result in results)
        assert (server.connections, server.disconnected) == (0, 3)


def test_drawn_faults_are_the_same_for_the_same_seed() -> None:
    faults = [Fault(kind=FaultKind.RESET), Fault(kind=FaultKind.STATUS, status=503)]
    plan, again, other = (seeded_faults(seed, 0.3, faults) for seed in (1, 1, 2))
    drawn = [plan(index) for index in range(1000)]
    assert drawn == [again(index) for index in reversed(range(1000))][::-1]
    assert drawn != [other(index) for index in range(1000)]
    assert 200 < sum(fault is not None for fault in drawn) < 400
    assert {fault.kind for fault in drawn if fault} == {FaultKind.RESET, FaultKind.STATUS}
    assert not any(seeded_faults(1, 0.0, faults)(index) for index in range(100))
    assert all(seeded_faults(1, 1.0, faults)(index) for index in range(100))


async def test_a_plan_of_faults_is_asked_for_every_request() -> None:
    async with standing(faults=lambda index: Fault(kind=FaultKind.STATUS) if index % 2 else None) as (_, client):
        assert [(await client.post("/generate", {"input_ids": PROMPT}))[0] for _ in range(4)] == [200, 500, 200, 500]
