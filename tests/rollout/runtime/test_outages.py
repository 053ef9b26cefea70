"""Servers that are away for a while, on loopback: nothing is lost, no run is ended, and a dead one still ends a run."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
from orl_core.config import GroupRewardConfig, RunConfig, decode_config
from orl_core.errors import RunAborted
from orl_core.trajectory import StopReason
from orl_rollout.engine_connection import Timeouts
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime import admission, circuit_breaker
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.group_scores import compare
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_rollout.sglang.client import SglangEngine
from orl_testing import SglangServer
from orl_testing import environments as envs

from tests.kit.episodes import RENDERER, calling, model, task_of
from tests.kit.serving import free_port
from tests.kit.trajectories import ended

pytestmark = pytest.mark.usefixtures("short_pauses", "short_window")

AWAY = 0.6  # seconds
WINDOW = 8  # rollouts


@pytest.fixture
def short_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "WINDOW", WINDOW)


class Restarting:
    """The gallery on one port, for as long as it is `up`. Every start forgets the sessions before it."""

    def __init__(self, wrap: Any = lambda app: app) -> None:
        self._port = free_port()
        self._wrap = wrap
        self._serving = ExitStack()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._serving.enter_context(envs.serve(envs.Trouble, envs.Compared, wrap=self._wrap, port=self._port))

    def stop(self) -> None:
        self._serving.close()


@contextmanager
def restarting(wrap: Any = lambda app: app) -> Generator[Restarting]:
    server = Restarting(wrap)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def config_of(url: str, patience: float) -> RunConfig:
    environments = {f"gallery/{name}": {"base_url": url} for name in ("Trouble", "Compared")}
    return decode_config({"environments": environments, "rollout": {"patience": patience}}, "test")


@asynccontextmanager
async def runtime_of(config: RunConfig) -> AsyncGenerator[Runtime]:
    async with OpenRewardClient(config) as client:
        patience = config.rollout.patience
        breaker = CircuitBreaker(max_error_rate=0.5, group_size=1, patience=patience)
        yield Runtime(config, renderer=RENDERER, client=client, breaker=breaker)


async def play(playing: Runtime, name: str, engine: Any = None) -> Outcome:
    task = task_of("Trouble", name=name)
    return await playing.play(RolloutRequest(task=task, rollout_id=name), engine or model(("step",), ("finish",)))


async def test_sessions_wait_for_a_server_that_restarts(caplog: pytest.LogCaptureFixture) -> None:
    with restarting() as server:
        async with runtime_of(config_of(server.url, 60.0)) as playing:
            await play(playing, "before")
            await asyncio.to_thread(server.stop)
            async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
                waiting = [tasks.create_task(play(playing, f"away {n}")) for n in range(16)]
                await asyncio.sleep(AWAY)
                assert not any(task.done() for task in waiting)
                await asyncio.to_thread(server.start)
    assert [task.result().trajectory.error for task in waiting] == [""] * 16
    assert [envs.Trouble.ran[f"away {n}"] for n in range(16)] == [1] * 16
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_server_that_never_answered_is_reported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FIRST_CONTACT", 0.3)
    async with runtime_of(config_of(f"http://127.0.0.1:{free_port()}", 600.0)) as playing, asyncio.timeout(30):
        outcomes = await asyncio.gather(*(play(playing, str(n)) for n in range(WINDOW - 1)))
        assert Counter(outcome.trajectory.stop_reason for outcome in outcomes) == {StopReason.ERROR: WINDOW - 1}
        with pytest.raises(RunAborted, match="no answer"):
            await play(playing, "last")


async def test_dead_environment_ends_the_run_after_the_patience() -> None:
    with restarting() as server:
        async with runtime_of(config_of(server.url, 1.0)) as playing, asyncio.timeout(50):
            await play(playing, "before")
            await asyncio.to_thread(server.stop)
            with pytest.raises(RunAborted, match="no answer"):
                await asyncio.gather(*(play(playing, str(n)) for n in range(2 * WINDOW)))


async def test_rollouts_wait_for_an_engine_that_is_away() -> None:
    said = [list(calling(name).token_ids) for name in ("step", "finish")]
    with restarting() as server:
        config = config_of(server.url, 60.0)
        async with (
            runtime_of(config) as playing,
            SglangServer(lambda ids, sampling: said[len(ids) > 200]) as engine_server,
            SglangEngine(engine_server.url, context_tokens=4096, timeouts=Timeouts(retry=60.0)) as engine,
        ):
            first = await play(playing, "before", engine)
            await engine_server.down()
            async with asyncio.timeout(50), asyncio.TaskGroup() as tasks:
                waiting = [tasks.create_task(play(playing, f"engine {n}", engine)) for n in range(8)]
                await asyncio.sleep(AWAY)
                assert not any(task.done() for task in waiting)
                await engine_server.up()
    assert [task.result().trajectory.error for task in waiting] == [""] * 8
    assert {task.result().trajectory.stop_reason for task in waiting} == {first.trajectory.stop_reason}


async def test_groups_are_scored_after_the_server_comes_back() -> None:
    scores = GroupRewardConfig(mode="only", timeout=1.0)
    with restarting() as server:
        config = config_of(server.url, 60.0)
        await asyncio.to_thread(server.stop)
        starting = threading.Timer(AWAY, server.start)
        starting.start()
        try:
            async with OpenRewardClient(config) as client, asyncio.timeout(50):
                compared, metrics = await compare([ended("a"), ended("four")], client, scores, patience=60.0)
        finally:
            starting.join()
    assert [outcome.reward for outcome in compared] == [1.0, 4.0]
    assert metrics["group_reward/failed"] == 0.0


class Gate:
    """Before the server: holds the answers of `/call` after their first event until `opened`. `held` counts them."""

    def __init__(self) -> None:
        self.opened = False
        self.held = 0

    def __call__(self, app: Any) -> Any:
        async def gated(scope: Any, receive: Any, send: Any) -> None:
            begun = False

            async def after_the_first(message: Any) -> None:
                nonlocal begun
                if begun and not self.opened:
                    self.held += 1
                    await asyncio.Event().wait()  # the server ends it
                begun = begun or message["type"] == "http.response.body"
                await send(message)

            await app(scope, receive, after_the_first if scope.get("path", "").endswith("/call") else send)

        return gated


async def test_batch_that_a_restart_breaks_is_played_again() -> None:
    """The sessions are gone with the server: the calls under way break, and going on with them is answered 404."""
    gate = Gate()
    rollouts = WINDOW + 4  # enough to end a run, if they counted
    with restarting(gate) as server:
        async with runtime_of(config_of(server.url, 60.0)) as playing, asyncio.timeout(100):
            async with asyncio.TaskGroup() as tasks:
                batch = [
                    tasks.create_task(play(playing, f"broken {n}", model(*(("step",), ("finish",)) * 2)))
                    for n in range(rollouts)
                ]
                while gate.held < rollouts:  # noqa: ASYNC110 - the server is on another thread
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.stop)
                gate.opened = True
                await asyncio.to_thread(server.start)
            outcomes = [task.result() for task in batch]
            assert (await play(playing, "after")).reward == 1.0  # no run ended
    assert [outcome.reward for outcome in outcomes] == [1.0] * rollouts
    assert all(outcome.replayed for outcome in outcomes)
