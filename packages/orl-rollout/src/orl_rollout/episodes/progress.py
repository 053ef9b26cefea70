"""The ledger of uploads: how far each file of a journal has been sent, and the lock of the process that sends.

Entries are sent in the order of their file, so progress is one offset a file. `uploads.json` holds the offsets and is
replaced whole. The process that sends holds a lock on `uploads.lock`, which its death frees. An entry that was cut off
is sent again under the same ids.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Self

import msgspec
from msgspec import structs

from orl_rollout.edge.files import replace
from orl_rollout.episodes.frames import frame
from orl_rollout.episodes.journal import encode_entry, journal_files, read_journal
from orl_rollout.logs import Sparing, logger_of

logger = logger_of(__name__)


class Ledger:
    """The places of the journal in `folder`; made by `take`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "uploads.json"
        self._places = _read(self._path)
        self._warnings = Sparing(logger)

    @classmethod
    def take(cls, folder: Path, lock: IO[bytes]) -> Self | None:
        """Return the ledger of `folder`, locked until `lock` is closed; None while another process holds it."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return cls(folder)

    def offset(self, name: str) -> int:
        """Return the byte at which sending continues in the file `name`."""
        return self._places.get(name, 0)

    def settle(self, name: str, offset: int) -> None:
        """Note that everything in the file `name` before `offset` has been dealt with.

        If that cannot be written, this process continues, and the next one sends it again.
        """
        self._places[name] = offset
        try:
            replace(self._path, msgspec.json.encode(self._places))
        except OSError as exc:
            self._warnings.warn(f"what has been uploaded cannot be noted in {self._path}: {exc}")


def replace_lost(folder: Path) -> None:
    """Mark the lost rollouts of a journal that nobody writes as replaced: they are played again.

    Records move then, so everything is uploaded again, under the same ids.

    Raises:
        OrlError: a file cannot be read.
    """
    for file in journal_files(folder):
        if any(entry.lost for entry in read_journal(file)):
            (folder / "uploads.json").unlink(missing_ok=True)
            marked = (structs.replace(entry, replaced=entry.lost) for entry in read_journal(file, replaced=True))
            replace(file, b"".join(frame(encode_entry(entry)) for entry in marked))
            file.chmod(0o600)


def unsent(folder: Path) -> bool:
    """Tell whether files of the journal in `folder` hold more than was noted as sent. No folder holds nothing."""
    places = _read(folder / "uploads.json")
    sizes = {file.name: file.stat().st_size for file in journal_files(folder) if file.is_file()}
    return any(places.get(name, 0) < size for name, size in sizes.items())


def _read(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        logger.warning("%s is not read, so everything is uploaded again: %s", path, exc)
        return {}
