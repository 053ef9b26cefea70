"""The engine through the public SDK: ids in and out, stop ids, seeds, T3, T4, T5 and T7 of the cookbook's recipe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import TrainerConfig
from orl_core.errors import EngineAnswerError, EngineError, EngineRefused
from orl_core.trajectory import Generation
from orl_rollout.loop.clock import within
from orl_testing.tinker.server import TinkerServer
from orl_tinker.adapters import Adapters
from orl_tinker.run import TinkerEngine, sampling_params

from tests.tinker.serving import NAMED

SAMPLING = {"max_new_tokens": 6, "temperature": 1.0, "top_p": 1.0, "stop_token_ids": [], "no_stop_trim": True}


@asynccontextmanager
async def engine_of(checkpoint: Path, *, older: bool = False) -> AsyncGenerator[tuple[TinkerServer, TinkerEngine]]:
    async with TinkerServer(older=older) as server:
        trainer = TrainerConfig(seed=1, sections={"tinker": {"tinker_url": server.url, "lora_rank": 2}})
        async with Adapters(trainer, str(checkpoint), "", 60.0) as adapters:
            await adapters.refresh()
            yield server, TinkerEngine(adapters.sample, 60.0)


async def ask(engine: TinkerEngine, **more: Any) -> Generation:
    return await engine.generate([5, 6, 7], {**SAMPLING, "sampling_seed": 3, **more}, key="k")


async def test_ids_come_with_logprobs_and_seeds_repeat(checkpoint: Path):
    async with engine_of(checkpoint) as (server, engine):
        first, again, other = [await ask(engine, sampling_seed=seed) for seed in (3, 3, 4)]
        assert (first.token_ids, first.logprobs) == (again.token_ids, again.logprobs)
        assert first.token_ids != other.token_ids
        assert len(first.token_ids) == 6
        assert first.finish_reason == "length"
        assert server.draws[0]["prompt"]["chunks"][0]["tokens"] == [5, 6, 7]


async def test_stop_id_is_sampled_and_ends_the_action(checkpoint: Path):
    """T4: the recipe stops at a text, so that the end token is never sampled."""
    async with engine_of(checkpoint) as (server, engine):
        free = await ask(engine)
        stop = free.token_ids[2]
        ended = await ask(engine, stop_token_ids=[stop])
        assert ended.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
        assert ended.finish_reason == "stop"
        assert server.draws[1]["sampling_params"]["stop"] == [stop]
    with pytest.raises(EngineRefused, match="stop"):
        sampling_params({**SAMPLING, "stop": ["</tool_call>"]})


def test_top_k_is_sent():
    """T7: the recipe reads it and never sends it."""
    assert sampling_params({**SAMPLING, "top_k": 5}).top_k == 5
    with pytest.raises(EngineRefused, match="min_p"):
        sampling_params({**SAMPLING, "min_p": 0.1})


async def test_missing_or_short_logprobs_are_an_error(checkpoint: Path):
    """T3: the recipe makes 0.0 of them."""

    def missing(answer: Any) -> None:
        answer.sequences[0].ClearField("logprobs")

    def short(answer: Any) -> None:
        answer.sequences[0].logprobs = answer.sequences[0].logprobs[:-4]

    async with engine_of(checkpoint) as (server, engine):
        for server.tamper in (missing, short):
            with pytest.raises(EngineAnswerError, match="logprobs"):
                await ask(engine)


async def test_storm_of_429_loses_no_request(checkpoint: Path):
    """T5: one 429 ends the recipe's run. No deadline counts the wait."""
    async with engine_of(checkpoint) as (server, engine):
        server.faults["asample"] = [429, 429]
        async with within(0.5, EngineError, "generating"):
            answer = await ask(engine)
        assert len(answer.token_ids) == 6
        assert server.refused["asample"] == 2
        assert len(server.draws) == 1


async def test_lost_result_is_sampled_again(checkpoint: Path):
    async with engine_of(checkpoint) as (server, engine):
        server.faults["retrieve_future"] = [410]
        assert len((await ask(engine)).token_ids) == 6


async def test_expired_session_is_opened_again(checkpoint: Path):
    async with engine_of(checkpoint) as (server, engine):
        before = await ask(engine)
        server.expire()
        answers = await asyncio.gather(*(ask(engine) for _ in range(3)))
        assert {one.token_ids for one in answers} == {before.token_ids}


async def test_server_of_the_older_protocol_wants_the_older_sdk(checkpoint: Path):
    """Its answers have no names, and it loads weights into a model that is new: another session begins so."""
    async with engine_of(checkpoint, older=True) as (server, engine):
        if NAMED:
            with pytest.raises(EngineRefused, match=r"Install tinker 0\.25"):
                await ask(engine)
        else:
            before = await ask(engine)
            server.expire()
            assert (await ask(engine)).token_ids == before.token_ids


@pytest.mark.parametrize("path", ["", "tinker://kept"])
async def test_deadline_ends_the_wait_for_a_session(checkpoint: Path, path: str):
    """The loop runs on, which here serves, too."""
    async with TinkerServer() as server:
        server.faults["retrieve_future"] = [408] * 100_000
        server.faults["weights_info"] = [503] * 100
        trainer = TrainerConfig(seed=1, sections={"tinker": {"tinker_url": server.url, "lora_rank": 2}})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), Adapters(trainer, str(checkpoint), path, 60.0):
                pass
        assert server.refused["retrieve_future"] + server.refused["weights_info"] > 0


async def test_wait_beyond_patience_is_counted(checkpoint: Path):
    hang = asyncio.Event()

    async def sample(*_: Any) -> Any:
        await hang.wait()

    engine = TinkerEngine(sample, 0.2)
    with pytest.raises(EngineError, match="no answer"):
        async with within(0.3, EngineError, "generating"):
            await engine.generate([1], SAMPLING, key="k")
