from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from orl_core.errors import EngineError
from orl_core.trajectory import Generation
from orl_trl.engine.in_process_engine import BATCH_ROWS, InProcessEngine
from orl_trl.engine.loop_thread import LoopThread
from transformers import Qwen3ForCausalLM

T = TypeVar("T")
PLAIN: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "no_stop_trim": True, "skip_special_tokens": False}


def serve(engine: InProcessEngine, work: Coroutine[Any, Any, T]) -> T:
    with LoopThread() as thread:
        return engine.serve(until=thread.submit(work))


def test_concurrent_requests_share_batches_not_answers(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)
    engine.weight_version = "7"

    async def ask() -> list[Generation]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    engine.generate((number, 3), {**PLAIN, "temperature": 0.0, "max_new_tokens": number + 1}, key="k")
                )
                for number in range(6)
            ]
        return [task.result() for task in tasks]

    together = serve(engine, ask())
    for number, generation in enumerate(together):
        alone = engine.generate((number, 3), {"temperature": 0.0, "max_new_tokens": number + 1}, key="k")
        assert generation.token_ids == serve(engine, alone).token_ids
        assert len(generation.token_ids) == number + 1
        assert generation.finish_reason == "length"
        assert generation.weight_version == "7"


def test_requests_beyond_a_batch_are_answered_by_the_next(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)

    async def ask() -> list[Generation]:
        asked = [engine.generate((number % 9, 3), {"max_new_tokens": 1}, key="k") for number in range(BATCH_ROWS + 2)]
        async with asyncio.timeout(60):
            return await asyncio.gather(*asked)

    assert [len(generation.token_ids) for generation in serve(engine, ask())] == [1] * (BATCH_ROWS + 2)


def test_a_stop_id_ends_the_answer_and_is_part_of_it(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)
    greedy = {"temperature": 0.0, "max_new_tokens": 4}
    free = serve(engine, engine.generate((3, 4), greedy, key="k"))
    stopped = serve(engine, engine.generate((3, 4), {**greedy, "stop_token_ids": [free.token_ids[1]]}, key="k"))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[1]) + 1]
    assert stopped.finish_reason == "stop"


def test_failed_batch_is_engine_error_and_next_batch_works(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)

    async def ask() -> list[BaseException | Generation]:
        bad = [engine.generate((10**6,), {"max_new_tokens": 2}, key="k") for _ in range(3)]
        failed = await asyncio.gather(*bad, return_exceptions=True)
        return [*failed, await engine.generate((1,), {"max_new_tokens": 2}, key="k")]

    *failed, good = serve(engine, ask())
    assert [type(fault) for fault in failed] == [EngineError] * 3
    assert "sampling a batch of 3" in str(failed[0])
    assert isinstance(good, Generation)


@pytest.mark.parametrize("sampling", [{"top_k": 5, "max_new_tokens": 1}, {"max_new_tokens": 0}])
def test_a_request_it_cannot_honour_is_refused(model: Qwen3ForCausalLM, sampling: dict[str, Any]):
    engine = InProcessEngine(model)
    with pytest.raises(EngineError, match="in-process engine"):
        serve(engine, engine.generate((1,), sampling, key="k"))


def test_a_cancelled_request_is_not_sampled(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)

    async def ask() -> Generation:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await engine.generate((10**6,), {"max_new_tokens": 2}, key="k")  # would fail its whole batch
        return await engine.generate((1,), {"max_new_tokens": 2}, key="k")

    assert len(serve(engine, ask()).token_ids) == 2


def test_what_the_work_raises_is_raised_and_the_thread_ends(model: Qwen3ForCausalLM):
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        serve(InProcessEngine(model), fail())
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]
