"""A trainer's own health monitor over two stand-in engines behind SGLang's router: one hangs, and is killed."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
from orl_core.trajectory import Generation
from orl_rollout.engine_connection import Timeouts
from orl_rollout.sglang.client import SglangEngine
from orl_testing import Fault, FaultKind, SglangServer

from tests.kit.routing import router
from tests.kit.serving import ANSWER, HANGS, PROMPT, SAMPLING, leaving_no_task

ROLLOUTS = 8
SETTINGS = Namespace(
    rollout_health_check_interval=0.05, rollout_health_check_timeout=1.0, rollout_health_check_first_wait=0.0
)


class Remote:
    """A method of a Ray actor."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def remote(self, **arguments: Any) -> Callable[[], Any]:
        return lambda: self._method(**arguments)


class Ray:
    """As much of Ray as a monitor needs: a call is made when its answer is asked for."""

    def get(self, call: Callable[[], Any]) -> Any:
        return call()

    def kill(self, engine: EngineActor) -> None:
        engine.is_allocated = False


class EngineActor:
    """The actor of one engine, which finds out that its engine hangs. miles' handle of it too."""

    def __init__(self, server: SglangServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.is_allocated = True
        self.hangs = False
        self.health_generate = Remote(self._health)
        self.shutdown = Remote(self._shutdown)
        self.actor_handle = self

    def _health(self, timeout: float) -> None:
        if self.hangs:
            raise TimeoutError(f"no answer within {timeout} s")

    def _shutdown(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.down(), self._loop).result(10)


class ServerGroup:
    """A trainer's group of engines, one node each."""

    nodes_per_engine = 1

    def __init__(self, engines: list[Any]) -> None:
        self.all_engines = self.engines = engines

    def stop_engines(self, engine_indices: list[int]) -> None:
        for index in engine_indices:
            self.engines[index].shutdown.remote()()
            self.engines[index].is_allocated = False


async def hold_that_a_hanging_engine_is_replaced(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Play requests on two engines. The monitor of `module` kills the one that hangs; all requests are answered."""
    monkeypatch.setattr(module, "ray", Ray())
    hang = [Fault(kind=FaultKind.HANG)]
    async with (
        leaving_no_task(),
        asyncio.timeout(HANGS),
        SglangServer(lambda ids, sampling: ANSWER, faults=hang) as first,
        SglangServer(lambda ids, sampling: ANSWER) as second,
        router(
            [first.url, second.url], policy="round_robin", cb_failure_threshold=2, retry_initial_backoff_ms=1
        ) as url,
        SglangEngine(url, context_tokens=32768, timeouts=Timeouts(retry=30)) as engine,
    ):
        engines = [EngineActor(first), EngineActor(second)]
        monitor = module.RolloutHealthMonitor(ServerGroup([*engines]), SETTINGS)
        assert monitor.start()
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(engine.generate(PROMPT, SAMPLING, key=str(key))) for key in range(ROLLOUTS)]
                await first.until_running(ROLLOUTS // 2)
                engines[0].hangs = True
                monitor.resume()
            answers: list[Generation] = [one.result() for one in asked]
        finally:
            await asyncio.to_thread(monitor.stop)
    assert [answer.token_ids for answer in answers] == [tuple(ANSWER)] * ROLLOUTS
    assert second.received == ROLLOUTS
