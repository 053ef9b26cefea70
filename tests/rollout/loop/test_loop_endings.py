"""The loop's promises 7 to 10 (tests/rollout/loop/test_loop.py lists them): aborts, faults, deadlines, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from orl_core.datum import to_data
from orl_core.errors import EngineError
from orl_core.messages import ImageBlock, ToolCall, ToolResult, ToolSpec, text_of
from orl_core.task import Task
from orl_core.trajectory import Generation, StopReason
from orl_rollout.loop import loop
from orl_rollout.loop.session import Opening
from orl_testing import ScriptedEngine, ScriptedSession
from orl_testing.scripted import Hang

from tests.rollout.loop.loop_play import RENDERER, TOOLS, call, play, result, say, session_of


async def test_7_abort_under_the_hosts_flag_does_not_train():
    flag = iter([False, True])
    partial = Generation(token_ids=(5, 6), logprobs=(-1.0, -1.0), finish_reason="abort")
    trajectory = await play([partial], session_of(), stopped=lambda: next(flag))
    assert trajectory.stop_reason is StopReason.ABORTED
    assert trajectory.turns[0].action_ids == (5, 6)
    assert not trajectory.trainable


async def test_7_unrequested_abort_continues_in_the_same_turn():
    whole = say(call())
    first = Generation(token_ids=whole.token_ids[:3], logprobs=(-1.0,) * 3, finish_reason="abort", weight_version="1")
    empty = Generation(token_ids=(), logprobs=(), finish_reason="abort")
    rest = Generation(
        token_ids=whole.token_ids[3:], logprobs=(-2.0,) * (len(whole.token_ids) - 3), finish_reason="stop"
    )
    engine = ScriptedEngine([first, empty, rest])
    trajectory = await play(engine, session_of(result(finished=True)))
    assert trajectory.stop_reason is StopReason.FINISHED
    assert [len(turn.generations) for turn in trajectory.turns] == [3]
    assert engine.requests[2].token_ids == engine.requests[0].token_ids + whole.token_ids[:3]
    (datum,) = to_data(trajectory, reward=0.0)
    assert datum.logprobs == first.logprobs + rest.logprobs


@pytest.mark.parametrize(
    ("reads", "calls", "limits"),
    [(0, 0, {}), (1, 0, {}), (2, 1, {}), (1, 0, {"parallel_calls": True}), (2, 2, {"parallel_calls": True})],
)
async def test_7_the_flag_is_read_before_every_turn_and_call(reads: int, calls: int, limits: dict[str, Any]):
    seen = 0

    def stopped() -> bool:
        nonlocal seen
        seen += 1
        return seen > reads

    session = session_of(result(), result())
    trajectory = await play([say(call(1) + call(2))], session, stopped=stopped, **limits)
    assert trajectory.stop_reason is StopReason.ABORTED
    assert len(session.calls) == calls


async def test_7_the_flag_is_read_before_an_answer_in_text():
    flag, session = iter([False, True]), session_of(result(finished=True), accepts_text_answer=True)
    trajectory = await play([say("The butler.")], session, stopped=lambda: next(flag))
    assert (trajectory.stop_reason, session.answers) == (StopReason.ABORTED, [])


FAULTS = {
    "open": lambda: (ScriptedEngine([]), session_of(fails_to_open=OSError("refused"))),
    "engine": lambda: (ScriptedEngine([EngineError("dead")]), session_of()),
    "foreign engine error": lambda: (ScriptedEngine([OSError("dead")]), session_of()),
    "engine later": lambda: (ScriptedEngine([say(call()), EngineError("dead")]), session_of(result())),
    "call": lambda: (ScriptedEngine([say(call())]), session_of(OSError("dead"))),
    "no ids": lambda: (ScriptedEngine([Generation(token_ids=(), logprobs=(), finish_reason="stop")]), session_of()),
    "foreign id": lambda: (
        ScriptedEngine([Generation(token_ids=(RENDERER.vocabulary_size,), logprobs=(-0.5,), finish_reason="length")]),
        session_of(),
    ),
    "image": lambda: (
        ScriptedEngine([say(call())]),
        session_of(ToolResult(name="act", content=(ImageBlock(data="", mime_type="image/png"),))),
    ),
    "broken schema": lambda: (ScriptedEngine([]), ScriptedSession(tools=(ToolSpec(name="a", parameters={"type": 7}),))),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_8_a_fault_ends_in_error_and_is_never_trained(name: str):
    engine, session = FAULTS[name]()
    trajectory = await play(engine, session)
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error
    assert not trajectory.trainable
    assert len(session.calls) <= 1
    assert all(not any(datum.loss_mask) for datum in to_data(trajectory, reward=0.0))


async def test_8_more_ids_than_asked_for_are_the_engines_fault():
    trajectory = await play([say(call())], session_of(), turn_tokens=3)
    assert trajectory.stop_reason is StopReason.ERROR
    assert "at most 3" in trajectory.error


async def test_9_a_call_past_its_deadline_is_a_fault():
    trajectory = await play([say(call())], session_of(result(), pause=Hang), call_timeout=0.02)
    assert trajectory.stop_reason is StopReason.ERROR
    assert "0.02 s" in trajectory.error
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(("engine", "session", "words"), [(Hang, 0.0, "generating"), (0.0, Hang, "calling tool `act`")])
async def test_9_late_turn_is_a_fault_of_whom_it_waits_for(engine: float, session: float, words: str):
    async with asyncio.timeout(10):
        trajectory = await play(
            ScriptedEngine([say(call())], pause=engine), session_of(result(), pause=session), turn_timeout=0.5
        )
    assert trajectory.stop_reason is StopReason.ERROR
    assert trajectory.error == f"{words}: no answer within the 0.5 s of its turn"


@pytest.mark.parametrize("train", [False, True])
async def test_9_late_rollout_is_a_timeout_with_its_turns(train: bool):
    engine, session = ScriptedEngine([say(call())]), session_of(result(), pause=Hang)
    trajectory = await play(engine, session, rollout_timeout=0.5, train_timeouts=train)
    assert trajectory.stop_reason is StopReason.TIMEOUT
    assert len(trajectory.turns) == 1
    assert trajectory.trainable is train


async def test_9_late_opening_is_a_fault():
    """The model had no turn: an evaluation must not count it as a failure, and the circuit breaker must see it."""

    class Slow(ScriptedSession):
        async def open(self, task: Task) -> Opening:
            await asyncio.Event().wait()
            return await super().open(task)

    trajectory = await play([], Slow(tools=TOOLS), rollout_timeout=0.05)
    assert (trajectory.stop_reason, trajectory.turns) == (StopReason.ERROR, ())
    assert "`rollout_timeout`" in (trajectory.error or "")


async def test_9_late_rollout_keeps_rewards_of_parallel_calls():
    """Results stay with their calls, also that of a call which was still running."""

    class Slow(ScriptedSession):
        async def call(self, call: ToolCall) -> ToolResult:
            if call.arguments["x"] == 1:
                await asyncio.Event().wait()
            return result(str(call.arguments["x"]), reward=0.5)

    engine = ScriptedEngine([say(call(1) + call(2))])
    trajectory = await play(engine, Slow(tools=TOOLS), parallel_calls=True, rollout_timeout=0.5, train_timeouts=True)
    assert (trajectory.stop_reason, trajectory.trainable) == (StopReason.TIMEOUT, True)
    lost, paid = trajectory.turns[0].results
    assert "did not end" in text_of(lost.content)
    assert (paid.reward, trajectory.rewards) == (0.5, (0.5,))


@pytest.mark.parametrize("where", ["engine", "call"])
async def test_10_cancellation_propagates_after_the_session_is_closed(where: str):
    engine = ScriptedEngine([say(call())], pause=Hang if where == "engine" else 0.0)
    session = session_of(result(), pause=Hang)
    task = asyncio.create_task(play(engine, session))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.closed == 1


async def test_10_a_close_that_fails_or_hangs_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "CLOSE_SECONDS", 0.02)

    class Stuck(ScriptedSession):
        async def close(self) -> None:
            await super().close()
            await asyncio.Event().wait()

    class Failing(ScriptedSession):
        async def close(self) -> None:
            await super().close()
            raise OSError("gone")

    for kind in (Stuck, Failing):
        trajectory = await play([say(call())], kind([result(finished=True, reward=1.0)], tools=TOOLS))
        assert trajectory.stop_reason is StopReason.FINISHED
