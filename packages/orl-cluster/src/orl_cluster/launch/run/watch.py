"""Watches one attempt of a trainer for what ends without an error: weights that do not arrive, and a hang."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from orl_core.errors import OrlError
from orl_rollout.run_folder import metrics_log, turn_count
from orl_rollout.run_folder.judges import DIFFERENCE, LogprobDrift

from orl_cluster.launch.command.command import Command
from orl_cluster.launch.command.critic import critic_folder
from orl_cluster.launch.command.engine_weights import samples_fresh
from orl_cluster.launch.run.process import LOG

LOOK_SECONDS = 30.0  # between two looks at the files


class Watch:
    """The judges of one attempt. `judge` may be called on another thread than `check`."""

    def __init__(self, command: Command) -> None:
        request = command.request
        self._command = command
        self._drift = LogprobDrift(request.trainer.max_logprob_difference)
        saved = (request.save, critic_folder(str(request.save)))
        seconds = request.cluster.stall_timeout
        self._stall = StallWatch(request.installation.trainer, request.run.folder, saved, seconds, time.monotonic())

    def judge(self, numbers: dict[str, float]) -> None:
        """Take the numbers of a step."""
        asynchronous = self._command.request.cluster.asynchronous
        if DIFFERENCE in numbers and samples_fresh(self._command.argv, asynchronous=asynchronous):
            self._drift.add(numbers[DIFFERENCE])

    def check(self) -> None:
        """Raise an OrlError if engines do not sample from the weights that train, or the trainer hangs."""
        self.check_weights()
        self._stall.check(time.monotonic())

    def check_weights(self) -> None:
        """Raise an OrlError if the engines do not sample from the weights that train."""
        if self._drift.fault:
            raise OrlError(self._drift.fault)


class StallWatch:
    """Watches one attempt of `trainer` in its run's `folder`, from the time `now` on, of a monotonic clock.

    Progress is a step, an answered turn, or a checkpoint in one of the folders `saved` whose size changes. A line in
    the log is progress before the first step alone: engines and Ray print for ever, and a trainer that loads a model
    has nothing else to show.
    """

    def __init__(self, trainer: str, folder: Path, saved: Sequence[Path], seconds: float, now: float) -> None:
        self._trainer, self._folder, self._saved, self._seconds = trainer, folder, saved, seconds
        turn_count.clear(folder)
        self._before = len(self._steps())
        self._seen = self._progress()
        self._moved = self._looked = now

    def check(self, now: float) -> None:
        """Look at the files, if it is time again. Raise an OrlError if nothing moved for too long."""
        if now - self._looked < min(LOOK_SECONDS, self._seconds / 20):
            return
        self._looked = now
        if (seen := self._progress()) != self._seen:
            self._seen, self._moved = seen, now
        elif now - self._moved > self._seconds:
            raise OrlError(self._message())

    def _steps(self) -> list[int]:
        rows = metrics_log.read(self._folder / "metrics.jsonl")
        return [row.step for row in rows if row.kind != "eval"]

    def _progress(self) -> tuple[int, int, int, int]:
        """Return numbers of which one changes with every progress."""
        steps = len(self._steps()) - self._before
        answered = turn_count.read(self._folder).answered
        return steps, answered, sum(map(_bytes_in, self._saved)), 0 if steps else _size(self._folder / LOG)

    def _message(self) -> str:
        turns, steps = turn_count.read(self._folder), self._steps()[self._before :]
        names = f" (the oldest: {', '.join(turns.oldest)})" if turns.open else ""
        return (
            f"{self._trainer} hangs: no step, no answered turn and no growing checkpoint in {self._seconds:g} s. "
            f"Last step: {steps[-1] if steps else 'none'}. Open rollouts: {turns.open}{names}. "
            "If its steps take longer, raise `trainer.cluster.stall_timeout`"
        )


def _bytes_in(folder: Path) -> int:
    return sum(_size(Path(inside, name)) for inside, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    with suppress(OSError):  # it is not there, or a trainer removes it at this moment
        return path.stat().st_size if path.is_file() else 0
    return 0
