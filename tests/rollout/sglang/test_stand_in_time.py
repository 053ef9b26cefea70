"""The SGLang stand-in and time: slots, queues and pauses, aborts, new weights, and faults."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest
from orl_testing import Fault, FaultKind, SglangServer, logprobs_of, seeded_faults

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


@pytest.mark.slow
async def test_a_pause_keeps_what_runs_and_holds_what_comes() -> None:
    async with standing([[4] * 100, [5]], token_seconds=0.01) as (server, client):
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
