"""The policy of a run that is interrupted: what has trained counts, what has not is left, a checkpoint is whole."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from orl_local.policy import LocalPolicy
from orl_local.run import train
from orl_rollout.edge.interrupt import Interrupted
from orl_rollout.loop.engine import Engine
from orl_rollout.run_folder.checkpoint import checkpoint_in

from tests.local.fakes import Player, by_row, make_run, rows


class Slow:
    """Worker and engine. Who wants its work to stop gets it whole, or not at all if it `stops`; None is deaf."""

    def __init__(self, *, stops: bool | None) -> None:
        self.began, self.ends, self.asked = asyncio.Event(), asyncio.Event(), list[str]()
        self._stops, self._stopped = stops, False

    async def call(self, name: str, *arguments: Any) -> Any:
        self.began.set()
        await self.ends.wait()
        if self._stopped:
            raise asyncio.CancelledError
        return {name: 1.0}

    def stop(self) -> None:
        self._stopped = self._stops is True
        if self._stops is not None:
            self.ends.set()

    async def release(self) -> None:
        self.asked.append("release")

    async def publish(self, version: str) -> dict[str, float]:
        return {}

    def client(self) -> Engine:
        raise NotImplementedError


def policy_of(both: Any) -> LocalPolicy:
    return LocalPolicy(both, both)


@pytest.mark.parametrize("stops", [True, False])
async def test_update_of_a_run_that_is_cancelled_counts_if_it_ends_whole(stops: bool):
    worker, ended = Slow(stops=stops), list[dict[str, float]]()

    async def step() -> None:
        ended.append(dict(await policy_of(worker).update([], 1)))

    running = asyncio.create_task(step())
    await worker.began.wait()
    running.cancel()
    assert (await asyncio.wait({running}, timeout=30))[0]
    assert running.cancelled() is stops
    assert ended == ([] if stops else [{"update": 1.0}])
    assert worker.asked == ["release"]


async def test_checkpoint_is_written_whole_whoever_is_cancelled(tmp_path: Path):
    worker = Slow(stops=None)
    saving = asyncio.create_task(policy_of(worker).save(tmp_path, 1))
    await worker.began.wait()
    for _ in range(2):
        saving.cancel()
        await asyncio.sleep(0.01)
    assert not saving.done()
    worker.ends.set()
    assert (await asyncio.wait({saving}, timeout=30))[0]


@pytest.mark.parametrize(("update", "steps"), [(2, 1), (3, 2)])
def test_step_that_has_begun_to_train_is_whole(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int, steps: int
):
    """A signal comes at the last update of the first step, or at the first one of the second."""
    plain, updates = torch.optim.AdamW.step, count(1)

    def step(*args: Any, **given: Any) -> Any:
        if next(updates) == update:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(*args, **given)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    run = make_run(tmp_path / "run", checkpoint, num_rollout=3)
    with pytest.raises(Interrupted):
        train(run, Player(run.config, by_row).open)
    assert next(updates) == 2 * steps + 1
    assert [row["step"] for row in rows(run)] == [*range(1, steps + 1)]
    note = checkpoint_in(run.folder / "checkpoint")
    assert note is not None
    assert note.step == steps
