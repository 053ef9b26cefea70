"""The SGLang stand-in on the wire: what a trainer or an engine client sees, without our own client in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orl_testing import Fault, FaultKind, logprobs_of

from tests.kit.serving import ANSWER, PROMPT
from tests.rollout.sglang.wire import standing

# /generate


async def test_an_answer_has_the_shape_of_sglang() -> None:
    async with standing() as (_, client):
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


def test_logprobs_tell_every_id_and_place_apart() -> None:
    values = logprobs_of([], list(range(50)) * 20)
    assert len(set(values)) > 900
    assert all(value < 0 for value in values)
    assert logprobs_of([1, 2], [3, 4])[1:] == logprobs_of([1, 2, 3], [4])


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
    async with standing() as (_, client):
        answer = await client.generate(**sampling)
    assert (answer["output_ids"], answer["meta_info"]["finish_reason"]) == (ids, finish)


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
    async with standing(context_tokens=50) as (_, client):
        answered, refusal = await client.post("/generate", body)
    text = refusal["error"]["message"] if status == 400 else refusal["message"]
    assert answered == status
    assert message in text


# The prefix cache


async def test_cached_tokens_are_the_longest_shared_prefix() -> None:
    async with standing() as (_, client):
        cached = [
            (await client.generate(ids))["meta_info"]["cached_tokens"]
            for ids in ([1, 2, 3], [1, 2, 3, *ANSWER, 4], [1, 2, 9], [1, 2, 3], [8], [1, 2, 9, *ANSWER], [2, 3])
        ]
    assert cached == [0, 6, 2, 2, 0, 5, 0]


async def test_the_cache_can_be_flushed_only_while_nothing_runs() -> None:
    async with standing(faults=[Fault(kind=FaultKind.HANG, at=1)]) as (server, client):
        await client.generate()
        async with asyncio.TaskGroup() as group:
            group.create_task(client.generate())
            await server.until_running(1)
            assert (await client.post("/flush_cache", None))[0] == 400
            server.abort()
        assert (await client.get("/flush_cache"))[0] == 200
        assert (await client.generate())["meta_info"]["cached_tokens"] == 0


async def test_prompt_close_to_the_context_is_refused() -> None:
    async with standing(context_tokens=50) as (_, client):
        statuses = [
            (await client.post("/generate", {"input_ids": [1] * size, "sampling_params": {"max_new_tokens": 1}}))[0]
            for size in (43, 44, 49)
        ]
    assert statuses == [200, 400, 400]
