"""The journal: every trajectory as one line of JSON, on disk when `record` returns.

A line is one `write` to a file opened with O_APPEND, without fsync: it is then in the kernel's hands and survives any
death of the process, SIGKILL included, and lines of several processes never mix. What it would not survive is the death
of the machine, and with it dies the run up to its last checkpoint; an fsync for that would cost milliseconds a rollout.
A line that a death tore is skipped by the reader, and the next writer begins on a line of its own. Secrets are scrubbed
(law L6). The module knows nothing of who reads it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.datum import to_data
from orl_core.errors import OrlError, boundary
from orl_core.trajectory import Trajectory

from orl_rollout.outcome import Outcome
from orl_rollout.secrets import Scrubber
from orl_rollout.text import clean, map_strings, plain

logger = logging.getLogger(__name__)

VERSION = 1  # of a record's schema


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One record. `key` is the rollout's, `step` the trainer's where it is known, `time` in seconds since the epoch."""

    version: int = VERSION
    key: str
    time: float
    reward: float
    success: bool
    step: int | None = None
    trajectory: Trajectory


class Journal:
    """Appends to the file at `path`, which is made with its folders. Threads and processes may share it.

    `then` is handed every entry once it is written, such as `Uploader.submit`.

    Raises:
        OrlError: the file cannot be opened.
    """

    def __init__(self, path: str | Path, config: RunConfig, *, then: Callable[[Entry], None] | None = None) -> None:
        self.path = Path(path)
        self._scrubber = Scrubber.of(config)
        self._then = then
        with boundary(OrlError, f"opening the journal {path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._mend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def record(self, outcome: Outcome, *, step: int | None = None) -> Outcome:
        """Write one outcome; it is safe from the process's death on return.

        Where its text echoes a secret, it is written scrubbed and without ids, and the outcome that is returned is
        marked `leaked` and does not train.

        Raises:
            OrlError: the line cannot be written (a full disk).
        """
        trajectory = self._scrubber.mark(outcome.trajectory)
        entry = Entry(
            key=trajectory.job.key,
            time=time.time(),
            reward=outcome.reward,
            success=outcome.success,
            step=step,
            trajectory=self._scrubber.scrubbed(trajectory) if trajectory.leaked else trajectory,
        )
        with boundary(OrlError, f"writing the journal {self.path}"):
            rest = memoryview(encode_entry(entry))
            while rest:
                rest = rest[os.write(self._file, rest) :]
        if self._then is not None:
            self._then(entry)
        if trajectory is outcome.trajectory:
            return outcome
        return structs.replace(outcome, trajectory=trajectory, data=to_data(trajectory, reward=outcome.reward))

    def close(self) -> None:
        """Close the file; nothing rests on it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _mend(self) -> None:
        """End the line that a writer's death left open."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")


def read_journal(path: str | Path) -> Iterator[Entry]:
    """The entries of the journal at `path`, in order; a torn or foreign line is skipped and logged.

    Raises:
        OrlError: the file cannot be read.
    """
    with boundary(OrlError, f"reading the journal {path}"), Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield decode_entry(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                logger.warning("%s:%d is skipped: %s", path, number, exc)


def encode_entry(entry: Entry) -> bytes:
    """One line of JSON with its end. The engine's `extras` are left out; ids stand as plain lists."""
    tree = plain(entry)
    for turn in tree["trajectory"]["turns"]:
        for generation in turn["generations"]:
            del generation["extras"]
    try:
        return msgspec.json.encode(tree) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(map_strings(tree, clean)) + b"\n"


def decode_entry(line: bytes) -> Entry:
    """The entry of one line.

    Raises:
        msgspec.DecodeError: the line is torn, or of another schema.
    """
    return msgspec.json.decode(line, type=Entry)
