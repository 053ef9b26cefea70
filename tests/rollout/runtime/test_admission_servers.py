"""Rollouts against servers that bear only so many sessions: all of them end well, and none waits by its own clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from orl_core.config import decode_config
from orl_core.messages import ToolCall, ToolResult
from orl_core.task import Task
from orl_core.trajectory import StopReason
from orl_rollout.loop.session import Opening, Overloaded, Session
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_testing import ScriptedSession
from orl_testing import environments as envs

from tests.kit.episodes import config_of, model, task_of
from tests.kit.runtimes import runtime_of


class Choosy:
    """An environment whose server takes `room` sessions at once; counts what it was asked."""

    def __init__(self, room: int, *, seconds: float = 0.02) -> None:
        self.room = room
        self.seconds = seconds
        self.open = 0
        self.most = 0

    def session(self, task: Task) -> Session:
        return _Chosen(self)


class _Chosen(ScriptedSession):
    def __init__(self, server: Choosy) -> None:
        super().__init__([ToolResult(name="act", reward=1.0, finished=True)])
        self._server = server
        self._in = False

    async def open(self, task: Task) -> Opening:
        if self._server.open >= self._server.room:
            raise Overloaded("full")
        self._server.open += 1
        self._server.most = max(self._server.most, self._server.open)
        self._in = True
        return await super().open(task)

    async def call(self, call: ToolCall) -> ToolResult:
        await asyncio.sleep(self._server.seconds)
        return await super().call(call)

    async def close(self) -> None:
        self._server.open -= self._in
        self._in = False
        await super().close()


def runtime(client: Any, **environment: Any) -> Runtime:
    config = config_of("Full", "http://127.0.0.1:9", **environment)
    return runtime_of(config, client)


@pytest.mark.slow
async def test_waiting_for_a_slot_counts_against_no_deadline():
    """Ten rollouts of 0.2 s, one after another: the last waits longer than a rollout may take."""
    server = Choosy(100, seconds=0.2)
    config = decode_config(
        {
            "environments": {"gallery/Full": {"max_concurrency": 1}},
            "rollout": {"call_timeout": 1.5, "turn_timeout": 1.5, "rollout_timeout": 1.5},
        },
        "test",
    )
    playing = runtime_of(config, server)
    outcomes = await asyncio.gather(
        *(playing.play(RolloutRequest(task=task_of("Full"), rollout_id=str(n)), model(("act",))) for n in range(10))
    )
    assert Counter(outcome.trajectory.stop_reason for outcome in outcomes) == {StopReason.FINISHED: 10}
    assert server.most == 1


async def test_an_abort_while_waiting_begins_nothing():
    server = Choosy(0)
    flag = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, flag.set)
    async with asyncio.timeout(20):
        outcome = await runtime(server).play(
            RolloutRequest(task=task_of("Full"), rollout_id="k"), model(), stopped=flag.is_set
        )
    assert outcome.trajectory.stop_reason is StopReason.ABORTED
    assert server.open == 0


class Full:
    """Answers 429 to the creation of a session while `room` are open, as a platform's gateway does."""

    room = 3

    def __init__(self, app: Any) -> None:
        self.app = app
        self.open = set[bytes]()
        self.most = 0
        self.refused = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        session = dict(scope.get("headers", ())).get(b"x-session-id", b"")
        if path == "/create" and len(self.open) >= self.room:
            self.refused += 1
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"0")]
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"detail": "too many sessions"}'})
            return
        if path == "/create":
            self.open.add(session)
            self.most = max(self.most, len(self.open))
        await self.app(scope, receive, send)
        if path == "/delete":
            self.open.discard(session)


async def test_server_for_three_sessions_serves_twenty_rollouts():
    gates = list[Full]()

    def wrap(app: Any) -> Any:
        gates.append(Full(app))
        return gates[-1]

    with envs.serve(envs.Trouble, wrap=wrap) as served:
        config = config_of("Trouble", served.url)
        async with OpenRewardClient(config) as client, asyncio.timeout(120):
            playing = runtime_of(config, client)
            outcomes = await asyncio.gather(
                *(
                    playing.play(
                        RolloutRequest(task=task_of("Trouble", number=n, name=f"full {n}"), rollout_id=str(n)),
                        model(("step",), ("finish",)),
                    )
                    for n in range(20)
                )
            )
        assert served.sessions == 0
    (gate,) = gates
    assert [outcome.trajectory.error for outcome in outcomes] == [""] * 20
    assert [outcome.reward for outcome in outcomes] == [1.0] * 20
    assert [envs.Trouble.ran[f"full {n}"] for n in range(20)] == [1] * 20
    assert gate.most == 3
    assert 0 < gate.refused < 2 * 20  # hardly one is refused twice
