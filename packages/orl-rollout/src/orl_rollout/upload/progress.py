"""How far each file of a journal has been uploaded, on disk, and which process is at it.

Entries are sent in the order of their file, so a file's place is one offset: where its next entry begins, and how many
events of that entry the platform has taken. `uploads.json` holds the places and is replaced whole; `uploads.lock` is
locked by the process that sends, and its death frees it. Without an fsync a machine's death may take the last places
with it: what they stand for is then sent again, under the same ids. The module knows nothing of the platform.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct
from orl_core.errors import ConfigError, OrlError, boundary

from orl_rollout.bounded_files import read_whole, replace
from orl_rollout.logs import logger_of

logger = logger_of(__name__)


class Place(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where sending goes on in a file: the byte at which the next entry begins, and how many of its events are sent."""

    offset: int = 0
    events: int = 0


class Ledger:
    """The places of the journal in `folder`; made by `take`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "uploads.json"
        self._places = _read(self._path)
        self._writable = True

    @classmethod
    def take(cls, folder: Path, held: ExitStack) -> Self | None:
        """The ledger of `folder`, locked until `held` is closed; None while another process holds it.

        Raises:
            OrlError: it cannot be opened.
        """
        with boundary(OrlError, f"opening the ledger of uploads in {folder}"), ExitStack() as failing:
            lock = os.open(folder / "uploads.lock", os.O_RDWR | os.O_CREAT, 0o644)
            failing.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            ledger = cls(folder)
            held.push(failing.pop_all())
            return ledger

    def place(self, name: str) -> Place:
        """Where sending goes on in the file `name`."""
        return self._places.get(name, Place())

    def settle(self, name: str, place: Place) -> None:
        """Note that everything in the file `name` before `place` has been dealt with.

        Where that cannot be written, this process knows it all the same, and the next one sends it again.
        """
        self._places[name] = place
        try:
            replace(self._path, msgspec.json.encode(self._places))
        except OSError as exc:
            if self._writable:
                logger.warning("what has been uploaded cannot be noted in %s: %s", self._path, exc)
            self._writable = False


def _read(path: Path) -> dict[str, Place]:
    try:
        return msgspec.json.decode(read_whole(path), type=dict[str, Place])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError) as exc:
        logger.warning("%s is not read, so everything is uploaded again: %s", path, exc)
        return {}
