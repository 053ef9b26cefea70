"""The turns that engines have answered, and the rollouts that are open, in a small file of the run's folder.

A worker of a trainer writes it, another process reads it: the one that must know whether the trainer still moves. The
journal cannot tell, because it gets a rollout at its end.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.trajectory import Generation

from orl_rollout.loop.engine import Engine

FILES = "turns-*.json"
PERIOD = 2.0  # seconds between two writes for turns alone
SHOWN = 3  # open rollouts that are named


class Turns(Struct, frozen=True, kw_only=True):
    """Answered turns, and open rollouts: their number, and the names of the oldest."""

    answered: int = 0
    open: int = 0
    oldest: tuple[str, ...] = ()


class TurnCount:
    """The file of this process in `folder`. Without a folder nothing is written, nor if the disk refuses."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder, f"turns-{socket.gethostname()}-{os.getpid()}.json") if folder else None
        self._answered = 0
        self._open: dict[str, None] = {}
        self._written = 0.0

    def answered(self) -> None:
        """Count a turn."""
        self._answered += 1
        if time.monotonic() - self._written >= PERIOD:
            self._write()

    @contextmanager
    def opened(self, rollout: str) -> Generator[None]:
        """Count the rollout of that name as open while the block runs."""
        self._open[rollout] = None
        self._write()
        try:
            yield
        finally:
            self._open.pop(rollout, None)
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._path is not None:
            names = list(self._open)
            turns = Turns(answered=self._answered, open=len(names), oldest=tuple(names[:SHOWN]))
            with suppress(OSError):
                self._path.write_bytes(msgspec.json.encode(turns))


class CountingEngine(Struct, frozen=True):
    """An engine whose answers are counted."""

    engine: Engine
    turns: TurnCount

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """See `Engine.generate`."""
        generation = await self.engine.generate(ids, sampling, key=key)
        self.turns.answered()
        return generation


def clear(folder: Path) -> None:
    """Remove the files of the processes of an earlier attempt."""
    for path in folder.glob(FILES):
        path.unlink(missing_ok=True)


def read(folder: Path) -> Turns:
    """Return the turns of all processes. A file that is being written is left out."""
    files: list[Turns] = []
    for path in sorted(folder.glob(FILES)):
        with suppress(OSError, msgspec.MsgspecError):
            files.append(msgspec.json.decode(path.read_bytes(), type=Turns))
    oldest = tuple(name for turns in files for name in turns.oldest)[:SHOWN]
    return Turns(answered=sum(one.answered for one in files), open=sum(one.open for one in files), oldest=oldest)
