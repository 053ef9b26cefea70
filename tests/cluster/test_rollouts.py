"""Rollouts in a worker: their identity in versions of slime, and those that wait for the trainer."""

from __future__ import annotations

import asyncio
import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest
from orl_cluster.hooks import worker
from orl_cluster.hooks.samples import rollout_of
from orl_cluster.hooks.worker import KeptRollout
from orl_rollout.loop.clock import Pause
from orl_rollout.results.outcome import Outcome


class WriteOnly(SimpleNamespace):
    """The Sample of slime 0.3.0: `rollout_id` can be set and not read."""

    @property
    def rollout_id(self) -> int:
        raise AttributeError("set group_id")


@pytest.mark.parametrize(
    "sample", [WriteOnly(index=3), SimpleNamespace(index=3), SimpleNamespace(index=3, rollout_id=None)]
)
def test_index_is_the_identity_where_there_is_no_other(sample: Any) -> None:
    assert rollout_of(sample) == rollout_of(copy.copy(sample)) == 3


def test_identity_of_split_rollouts_is_theirs() -> None:
    assert rollout_of(SimpleNamespace(index=3, rollout_id=1)) == 1


OUTCOME = cast("Outcome", object())


class Play:
    """A rollout that is put aside `pauses` times. `answers` are those of its pauses."""

    def __init__(self, pauses: int) -> None:
        self.pauses = pauses
        self.answers: list[bool] = []
        self.closed = 0
        self.over = asyncio.Event()

    async def __call__(self, pause: Pause) -> Outcome:
        try:
            for _ in range(self.pauses):
                self.answers.append(await pause())
            return OUTCOME
        finally:
            self.closed += 1
            self.over.set()


async def test_rollout_proceeds_from_pause_to_pause():
    play = Play(2)
    rollout = KeptRollout(play)
    assert [await rollout.proceed() for _ in range(3)] == [None, None, OUTCOME]
    assert play.answers == [True, True]
    assert rollout.ended


async def test_rollout_without_a_pause_ends_at_once():
    assert await KeptRollout(Play(0)).proceed() is OUTCOME


async def test_rollout_that_nobody_asks_for_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "KEEP_SECONDS", 0.0)
    play = Play(1)
    rollout = KeptRollout(play)
    await rollout.proceed()
    await play.over.wait()
    assert play.answers == [False]


async def test_cancelled_trainer_ends_the_rollout():
    play = Play(0)

    async def hang(pause: Pause) -> Outcome:
        try:
            return await asyncio.Future[Any]()
        finally:
            play.closed += 1

    waiting = asyncio.ensure_future(KeptRollout(hang).proceed())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert play.closed == 1


async def test_fault_of_the_rollout_reaches_the_trainer():
    async def fails(pause: Pause) -> Outcome:
        await pause()
        raise ValueError("a bug")

    rollout = KeptRollout(fails)
    assert await rollout.proceed() is None
    with pytest.raises(ValueError, match="a bug"):
        await rollout.proceed()


async def test_cancelled_wait_closes_the_session():
    play = Play(1)
    rollout = KeptRollout(play)
    assert await rollout.proceed() is None
    await rollout.cancel()
    assert (rollout.ended, play.closed) == (True, 1)
