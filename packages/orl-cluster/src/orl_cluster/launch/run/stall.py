"""Ends a trainer that hangs: nothing moves for `trainer.cluster.stall_timeout` seconds, and no error comes.

Progress is a step, an answered turn, or a checkpoint whose size changes. A line in the log is progress before the first
step alone: engines and Ray print for ever, and a trainer that loads a model has nothing else to show.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from orl_core.errors import OrlError
from orl_rollout.run_folder import metrics_log, turn_count

from orl_cluster.launch.run.stacks import write_stacks

LOOK_SECONDS = 30.0  # between two looks at the files
STACKS = "stacks.txt"  # in the run's folder


class Files(Struct, frozen=True, kw_only=True):
    """The files that show progress: the run's `folder`, the trainer's `log` in it, the checkpoints `saved`."""

    folder: Path
    log: Path
    saved: Sequence[Path]

    @property
    def metrics(self) -> Path:
        """The steps of the run."""
        return self.folder / "metrics.jsonl"


class StallWatch:
    """Watches one attempt of `trainer`, from the time `now` on, of a monotonic clock."""

    def __init__(self, trainer: str, files: Files, seconds: float, now: float) -> None:
        self._trainer, self._files, self._seconds = trainer, files, seconds
        self._read = _size(files.metrics)
        self._step = 0
        turn_count.clear(files.folder)
        self._seen = self._progress()
        self._moved = self._looked = now

    def check(self, now: float) -> None:
        """Look at the files, if it is time again.

        Raises:
            OrlError: nothing moved for too long; says what was last, and where the stacks of the processes are.
        """
        if now - self._looked < min(LOOK_SECONDS, self._seconds / 20):
            return
        self._looked = now
        if (seen := self._progress()) != self._seen:
            self._seen, self._moved = seen, now
        elif now - self._moved > self._seconds:
            raise OrlError(self._told())

    def _progress(self) -> tuple[int, int, int, int]:
        """Return numbers of which one changes with every progress."""
        self._read_steps()
        saved = sum(map(_bytes_in, self._files.saved))
        answered = turn_count.read(self._files.folder).answered
        return self._step, answered, saved, 0 if self._step else _size(self._files.log)

    def _read_steps(self) -> None:
        """Take the last step from the lines of metrics.jsonl that came since the look before."""
        if not self._files.metrics.is_file():
            return
        with self._files.metrics.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                row = metrics_log.parse_row(line)
                if row is not None and row.kind != "eval":
                    self._step = row.step

    def _told(self) -> str:
        turns = turn_count.read(self._files.folder)
        names = f" (the oldest: {', '.join(turns.oldest)})" if turns.open else ""
        return (
            f"{self._trainer} hangs: no step, no answered turn and no growing checkpoint in {self._seconds:g} s. "
            f"Last step: {self._step or 'none'}. Open rollouts: {turns.open}{names}. "
            f"{write_stacks(self._files.folder / STACKS)}. If its steps take longer, raise "
            "`trainer.cluster.stall_timeout`"
        )


def _bytes_in(folder: Path) -> int:
    return sum(_size(Path(inside, name)) for inside, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    with suppress(OSError):  # it is not there, or a trainer removes it at this moment
        return path.stat().st_size if path.is_file() else 0
    return 0
