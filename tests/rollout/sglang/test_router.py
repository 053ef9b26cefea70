"""The engine client through SGLang's real router to two stand-in workers: routing, retries, breakers, dying workers.

The router is a process of its own on a free port. Its patience is shortened by its own options; ours outlives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import aiohttp
import pytest
from orl_core.datum import to_data
from orl_core.errors import EngineError
from orl_core.limits import Limits
from orl_core.messages import ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory
from orl_rollout.engine_connection import Timeouts
from orl_rollout.loop.loop import rollout
from orl_rollout.sglang.client import SglangEngine
from orl_testing import Fault, FaultKind, ScriptedSession, SglangServer
from orl_testing.sglang.faults import scripted_faults

from tests.kit.routing import router
from tests.kit.serving import ANSWER, HANGS, PROMPT, SAMPLING, leaving_no_task
from tests.kit.tokenizers import renderer_of, tokenizer

TOKENIZER = tokenizer()
RENDERER = renderer_of()
CALL = TOKENIZER.encode_joint('<tool_call>\n{"name": "act", "arguments": {}}\n</tool_call><|im_end|>')
TURNS = 4


class Routed(NamedTuple):
    """A router at `url` with an engine on it, and the two workers behind it."""

    url: str
    engine: SglangEngine
    workers: tuple[SglangServer, SglangServer]
    faults: list[list[Fault]]

    @property
    def received(self) -> tuple[int, int]:
        return self.workers[0].received, self.workers[1].received

    async def busy(self) -> SglangServer:
        """The first worker that has a request to answer."""
        waits = {asyncio.ensure_future(worker.until_running(1)): worker for worker in self.workers}
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        return waits[done.pop()]

    def calm(self) -> None:
        """No more faults."""
        for faults in self.faults:
            faults.clear()


@asynccontextmanager
async def routed(
    model: Any = lambda ids, sampling: ANSWER,
    *,
    faults: tuple[Sequence[Fault], Sequence[Fault]] = ((), ()),
    timeouts: Timeouts | None = None,
    **options: Any,
) -> AsyncGenerator[Routed]:
    """Two workers with the same model, a router over them, an engine on it."""
    scripts = [list(script) for script in faults]
    plans = [lambda index, script=script: scripted_faults(script)(index) for script in scripts]
    async with (
        leaving_no_task(),
        asyncio.timeout(HANGS),
        SglangServer(model, faults=plans[0]) as first,
        SglangServer(model, faults=plans[1]) as second,
        router([first.url, second.url], **{"policy": "manual"} | options) as url,
        SglangEngine(url, context_tokens=32768, timeouts=timeouts or Timeouts(retry=30)) as engine,
    ):
        yield Routed(url, engine, (first, second), scripts)


async def answer(url: str) -> tuple[int, str]:
    """One request to the router without any patience: its status and its body."""
    body = {"input_ids": PROMPT, "sampling_params": SAMPLING, "return_logprob": True}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/generate", json=body) as response:
        return response.status, await response.text()


async def generate(at: Routed, key: str) -> Generation:
    return await at.engine.generate(PROMPT, SAMPLING, key=key)


async def play(at: Routed, key: str, **limits: Any) -> tuple[Trajectory, ScriptedSession]:
    """A rollout of TURNS calls."""
    results = [ToolResult(name="act", finished=turn == TURNS) for turn in range(1, TURNS + 1)]
    session = ScriptedSession(results)
    job = RolloutSpec(task=Task(env_name="A/B", deployment_name="A/B"), rollout_id=key, limits=Limits(**limits))
    trajectory = await rollout(job, session=session, renderer=RENDERER, engine=at.engine)
    assert (session.opened, session.closed) == (1, 1)
    return trajectory, session


def calls(ids: list[int], sampling: dict[str, Any]) -> list[int]:
    return CALL


@pytest.mark.parametrize("policy", ["manual", "consistent_hashing"])
async def test_turns_of_a_rollout_meet_one_worker_and_its_cache(policy: str) -> None:
    async with routed(calls, policy=policy) as at:
        workers = set[int]()
        for number in range(24):
            before = at.received
            trajectory, _ = await play(at, f"rollout-{number}")
            assert trajectory.stop_reason is StopReason.FINISHED
            made = [after - seen for after, seen in zip(at.received, before, strict=True)]
            assert sorted(made) == [0, TURNS]
            workers.add(made.index(TURNS))
            cached = [turn.generations[0].cached_tokens for turn in trajectory.turns]
            assert all(more > less for less, more in pairwise(cached))
    assert workers == {0, 1}


@pytest.mark.parametrize(("failures", "options"), [(3, {}), (8, {"disable_circuit_breaker": True})])
async def test_our_attempts_follow_those_of_the_router(failures: int, options: dict[str, Any]) -> None:
    """It tries five times in all; after ours it tries five times again."""
    faults = [Fault(kind=FaultKind.STATUS, at=number) for number in range(failures)]
    async with routed(faults=(faults, faults), retry_initial_backoff_ms=1, **options) as at:
        assert (await generate(at, "a")).token_ids == tuple(ANSWER)
        assert sorted(at.received) == [0, failures + 1]


@pytest.mark.slow
async def test_our_retries_outlive_open_breakers() -> None:
    """Both workers fail until both breakers are open: the router refuses for two seconds, then they are well."""
    faults = [Fault(kind=FaultKind.STATUS, at=number) for number in range(2)]
    options: dict[str, Any] = {"cb_failure_threshold": 2, "cb_timeout_duration_secs": 2, "retry_initial_backoff_ms": 1}
    async with routed(faults=(faults, faults), **options) as at:
        answers = [await answer(at.url) for _ in range(3)]
        assert answers[-1][0] == 503
        assert "no_available_workers" in answers[-1][1]
        assert at.received == (2, 2)
        assert (await generate(at, "a")).token_ids == tuple(ANSWER)
        assert sorted(at.received) == [2, 3]


@pytest.mark.slow
async def test_requests_expired_in_the_routers_queue_are_resent() -> None:
    """One runs, eleven wait behind it for a second; the router may let some through, and gives the others up."""
    hang = [Fault(kind=FaultKind.HANG, at=0)]
    options: dict[str, Any] = {"max_concurrent_requests": 1, "queue_size": 16, "queue_timeout_secs": 1}
    async with routed(faults=(hang, hang), **options) as at, asyncio.TaskGroup() as group:
        first = group.create_task(generate(at, "a"))
        worker = await at.busy()
        at.calm()
        ours = [group.create_task(generate(at, key)) for key in "bcd"]
        bare = [group.create_task(answer(at.url)) for _ in range(8)]
        assert (408, "") in await asyncio.gather(*bare)
        worker.abort()
        assert (await first).finish_reason == "abort"
        assert [(await task).token_ids for task in ours] == [tuple(ANSWER)] * 3


async def test_a_refusal_comes_through_at_once() -> None:
    refusal = [Fault(kind=FaultKind.STATUS, status=400, message="too long")]
    async with routed(faults=(refusal, refusal)) as at:
        with pytest.raises(EngineError, match="HTTP 400: too long"):
            await generate(at, "a")
        assert sorted(at.received) == [0, 1]


async def test_a_rollout_whose_worker_dies_ends_on_the_other() -> None:
    """It dies in the middle of the second turn and stays dead; the router learns it by its breaker."""
    hang = [Fault(kind=FaultKind.HANG, at=1)]
    options: dict[str, Any] = {"cb_failure_threshold": 2, "retry_initial_backoff_ms": 1}
    async with routed(calls, faults=(hang, hang), **options) as at, asyncio.TaskGroup() as group:
        playing = group.create_task(play(at, "a"))
        worker = await at.busy()
        at.calm()
        await worker.down()
        trajectory, session = await playing
        assert trajectory.stop_reason is StopReason.FINISHED
        assert [turn.action_ids for turn in trajectory.turns] == [tuple(CALL)] * TURNS
        assert len(session.calls) == TURNS
        assert sorted(at.received) == [2, TURNS - 1]


async def test_rollout_without_workers_is_an_error_with_its_turns() -> None:
    hang = [Fault(kind=FaultKind.HANG, at=1)]
    options: dict[str, Any] = {"cb_failure_threshold": 2, "retry_initial_backoff_ms": 1}
    async with (
        routed(calls, faults=(hang, hang), timeouts=Timeouts(retry=0.5), **options) as at,
        asyncio.TaskGroup() as group,
    ):
        playing = group.create_task(play(at, "a"))
        await at.busy()
        for worker in at.workers:
            await worker.down()
        trajectory, session = await playing
        assert trajectory.stop_reason is StopReason.ERROR
        assert [turn.action_ids for turn in trajectory.turns] == [tuple(CALL), ()]
        assert not any(any(datum.loss_mask) for datum in to_data(trajectory, reward=0.0))
        assert len(session.calls) == 1


async def test_disconnecting_from_the_router_aborts_at_the_worker() -> None:
    hang = [Fault(kind=FaultKind.HANG)]
    async with routed(calls, faults=(hang, hang)) as at:
        playing = asyncio.ensure_future(play(at, "a"))
        worker = await at.busy()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await worker.until_running(0)
        assert worker.disconnected == 1
