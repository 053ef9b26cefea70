"""L7, a rollout counts once, also if it is played again: one set of rows, one reward, and every session closed once.

A session may be lost at any call of either attempt. Who counts rollouts sees one of them: the journal's readers, the
metrics, the uploads and the trainer.
"""

from __future__ import annotations

import tempfile
from typing import Any, Literal, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import decode_config
from orl_core.errors import SessionError, SessionTimeout
from orl_core.messages import ToolResult
from orl_core.task import Task
from orl_core.trajectory import StopReason
from orl_rollout.episodes.journal import Journal, read_journal
from orl_rollout.loop.session import SessionLost
from orl_rollout.results.metrics import metrics_of, stats_of
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit import one_loop
from tests.kit.episodes import calling
from tests.kit.runtimes import runtime_of
from tests.laws.checks import check_data

CALLS = 3
TASK = Task(env_name="A/B", deployment_name="A/B")
Fault = Literal["lost", "broken", "late"]
FAULTS = {"lost": SessionLost("reset by peer"), "broken": SessionError("HTTP 500"), "late": SessionTimeout("no answer")}


class Attempts:
    """An environment whose n-th session has the n-th fault: at which call, and which one."""

    def __init__(self, faults: list[tuple[int, Fault] | None]) -> None:
        self._faults = iter(faults)
        self.sessions: list[ScriptedSession] = []

    def session(self, task: Task) -> ScriptedSession:
        script: list[ToolResult | Exception] = [
            ToolResult(name="act", reward=0.5, finished=number == CALLS - 1) for number in range(CALLS)
        ]
        if fault := next(self._faults, None):
            script[fault[0]] = FAULTS[fault[1]]
        self.sessions.append(ScriptedSession(script))
        return self.sessions[-1]


class Played(NamedTuple):
    outcome: Outcome
    sessions: list[ScriptedSession]
    counted: list[tuple[str, StopReason]]  # what the journal's readers see
    written: list[tuple[str, StopReason, bool]]


def play(faults: list[tuple[int, Fault] | None], stopped: Any = lambda: False, **environment: Any) -> Played:
    config = decode_config({"environments": {"A/B": environment}}, "test")
    world = Attempts(faults)

    async def main() -> Played:
        with tempfile.TemporaryDirectory() as folder, Journal(folder) as journal:
            runtime = runtime_of(config, world, journal=journal)
            engine = ScriptedEngine([calling("act")] * 2 * CALLS)
            outcome = await runtime.play(RolloutRequest(task=TASK, rollout_id="k"), engine, stopped=stopped)
            return Played(
                outcome,
                world.sessions,
                [(entry.key, entry.trajectory.stop_reason) for entry in read_journal(folder)],
                [
                    (entry.key, entry.trajectory.stop_reason, entry.replaced)
                    for entry in read_journal(folder, replaced=True)
                ],
            )

    return one_loop.run(main())


faults = st.none() | st.tuples(st.integers(0, CALLS - 1), st.sampled_from(["lost", "broken", "late"]))


@given(first=faults, second=faults)
def test_replayed_rollout_counts_once(first: tuple[int, Fault] | None, second: tuple[int, Fault] | None) -> None:
    played = play([first, second])
    again = first is not None and first[1] == "lost"
    last = second if again else first
    ending = StopReason.FINISHED if last is None else StopReason.ERROR
    assert [(session.opened, session.closed) for session in played.sessions] == [(1, 1)] * (1 + again)
    assert played.counted == [("k", ending)]
    assert played.written == [("k", StopReason.ERROR, True)] * again + [("k", ending, False)]
    outcome = played.outcome
    assert outcome.reward == (0.0 if last else 0.5 * CALLS)
    assert len(outcome.trajectory.turns) == (last[0] + 1 if last else CALLS)
    check_data(outcome.trajectory, outcome.datums)
    metrics = metrics_of([stats_of(outcome)])
    assert (metrics["A/B/rollouts"], metrics["A/B/replayed"]) == (1.0, float(again))


def test_world_outside_the_session_is_not_played_again() -> None:
    played = play([(1, "lost")], replay=False)
    assert len(played.sessions) == 1
    assert played.written == [("k", StopReason.ERROR, False)]


def test_stopped_rollout_is_not_played_again() -> None:
    faults: list[tuple[int, Fault] | None] = [(1, "lost")]
    stops = iter([False] * (2 * 2 + 1))  # before the session, and before each turn and its calls
    played = play(faults, lambda: next(stops, True))
    assert len(played.sessions) == 1
