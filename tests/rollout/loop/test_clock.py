"""A rollout that its host puts aside: it waits, no deadline counts the wait, and then it continues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.datum import to_data
from orl_core.trajectory import Generation, StopReason, Trajectory
from orl_rollout.loop.clock import postpone
from orl_testing import ScriptedEngine

from tests.laws.virtual import VirtualLoop
from tests.rollout.loop.loop_play import call, play, result, say, session_of

LONG = 10_000.0  # seconds, more than any deadline
WHOLE = say(call(2))
CUT = 5


def engine() -> ScriptedEngine:
    """A call, and a second one that an abort cuts in two."""
    first = Generation(token_ids=WHOLE.token_ids[:CUT], logprobs=(-1.0,) * CUT, finish_reason="abort")
    rest = WHOLE.token_ids[CUT:]
    second = Generation(token_ids=rest, logprobs=(-2.0,) * len(rest), finish_reason="stop", weight_version="1")
    return ScriptedEngine([say(call(1)), first, second, say(call(3))])


def played(aborts: frozenset[int], *, goes_on: bool = True) -> Trajectory:
    """The rollout, with the host's flag set at the reads `aborts`. Every wait takes LONG."""
    reads = iter(range(100))

    async def pause() -> bool:
        await asyncio.sleep(LONG)
        return goes_on

    async def main() -> Trajectory:
        session = session_of(result("a"), result("b"), result("c", finished=True))
        return await play(engine(), session, lambda: next(reads) in aborts, pause)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@given(aborts=st.frozensets(st.integers(0, 8)))
def test_rollout_goes_on_as_if_it_had_not_waited(aborts: frozenset[int]):
    trajectory, expected = played(aborts), played(frozenset())
    assert trajectory.stop_reason is StopReason.FINISHED
    assert [turn.generations for turn in trajectory.turns] == [turn.generations for turn in expected.turns]
    assert trajectory.seconds < LONG
    same = structs.replace(trajectory, turns=expected.turns, seconds=expected.seconds)
    assert to_data(same, reward=1.0) == to_data(expected, reward=1.0)
    assert to_data(trajectory, reward=1.0) == to_data(expected, reward=1.0)


@pytest.mark.parametrize("read", range(4))
def test_rollout_that_the_host_gives_up_is_aborted(read: int):
    trajectory = played(frozenset({read}), goes_on=False)
    assert trajectory.stop_reason is StopReason.ABORTED
    assert not trajectory.trainable


class Away:
    """An engine that is away before each answer, for LONG, and says so."""

    def __init__(self, *, says_so: bool) -> None:
        self._engine = engine_of_three_calls()
        self._says_so = says_so

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        if self._says_so:
            postpone(LONG)
        await asyncio.sleep(LONG)
        return await self._engine.generate(ids, sampling, key=key)


def engine_of_three_calls() -> ScriptedEngine:
    return ScriptedEngine([say(call(number)) for number in range(3)])


@pytest.mark.parametrize("says_so", [True, False])
def test_no_deadline_counts_an_engine_that_is_away(says_so: bool):
    async def main() -> Trajectory:
        session = session_of(result("a"), result("b"), result("c", finished=True))
        return await play(Away(says_so=says_so), session)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        trajectory = runner.run(main())
    assert trajectory.stop_reason is (StopReason.FINISHED if says_so else StopReason.ERROR)
