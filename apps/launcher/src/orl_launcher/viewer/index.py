"""The index of a journal: one row of SQLite for each episode, so that a million of them can be filtered.

The database lies in a cache folder, never beside the journal. It grows with the journal: each file is read from where
the last whole record ended. The records themselves are read from the journal again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from orl_core.errors import OrlError, boundary
from orl_core.task import Task
from orl_rollout.episodes.frames import Frame, read_frames
from orl_rollout.episodes.journal import Entry, decode_entry, journal_files

VERSION = 2  # of the tables
BATCH = 5000  # records of one transaction
TABLES = """
CREATE TABLE files (id INTEGER PRIMARY KEY, name TEXT UNIQUE, inode INTEGER, position INTEGER, skipped INTEGER);
CREATE TABLE names (id INTEGER PRIMARY KEY, kind TEXT, name TEXT, UNIQUE (kind, name));
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY, file INTEGER, start INTEGER, environment INTEGER, task INTEGER, ending INTEGER,
    step INTEGER, held_out INTEGER, reward REAL, verdict INTEGER, turns INTEGER, seconds REAL, time REAL
);
CREATE INDEX by_task ON episodes (task, step);
CREATE INDEX by_kind ON episodes (held_out, id DESC);
"""
VERDICTS = ("lost", "won", "error")  # by their number in `episodes`


class _Job(Struct):
    task: Task
    evaluation: bool = False


class _Trajectory(Struct):
    job: _Job
    stop_reason: str
    stop_detail: str | None = None
    error: str = ""
    seconds: float = 0.0
    turns: list[msgspec.Raw] = field(default_factory=list[msgspec.Raw])


class _Record(Struct):
    """The part of a journal's record that is indexed; the rest is not decoded."""

    time: float
    reward: float | None
    success: bool
    trajectory: _Trajectory
    step: int | None = None
    replaced: bool = False


_decoder = msgspec.json.Decoder(_Record)


class Index:
    """The index of one journal, a folder or a file. Each thread opens its own connection.

    Raises:
        OrlError: the cache cannot be written.
    """

    def __init__(self, journal: Path, cache: Path) -> None:
        self.journal = journal.resolve()
        digest = hashlib.blake2b(os.fsencode(self.journal), digest_size=12).hexdigest()
        self._path = cache / f"{digest}.sqlite3"
        with boundary(OrlError, f"making the index {self._path}"):
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make()

    def _make(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            try:
                version = database.execute("PRAGMA user_version").fetchone()[0]
                if version == VERSION and database.execute("PRAGMA quick_check").fetchone()[0] == "ok":
                    return
            except sqlite3.OperationalError:  # another viewer holds it: it is not broken
                raise
            except sqlite3.DatabaseError:
                pass
        for suffix in ("", "-wal", "-shm"):  # it is a cache: one that is broken or old is made again
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")

    @contextmanager
    def opened(self) -> Generator[sqlite3.Connection]:
        """Yield a connection for this thread."""
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as database:
            database.execute("PRAGMA synchronous = OFF")
            yield database

    def refresh(self) -> Iterator[int]:
        """Read what the journal has gained. Yield the number of new records after each batch.

        Raises:
            OrlError: a file of the journal or the index cannot be read.
        """
        with boundary(OrlError, f"reading the journal {self.journal}"), self.opened() as database:
            for file in journal_files(self.journal):
                with boundary(OrlError, f"reading the journal {file}"), file.open("rb") as records:
                    yield from _read(database, file.name, records)

    def progress(self) -> tuple[int, int]:
        """Return the bytes of the journal that are indexed, and all of them."""
        total = sum(file.stat().st_size for file in journal_files(self.journal) if file.is_file())
        with self.opened() as database:
            done = database.execute("SELECT coalesce(sum(position), 0) FROM files").fetchone()[0]
        return done, total

    def entry(self, number: int) -> Entry | None:
        """Return the episode of this number, read from the journal; None if there is none.

        Raises:
            OrlError: the journal has changed, or cannot be read.
        """
        with self.opened() as database:
            found = database.execute(
                "SELECT files.name, start FROM episodes JOIN files ON files.id = file WHERE episodes.id = ?", (number,)
            ).fetchone()
        if found is None:
            return None
        name, start = found
        path = self.journal / name if self.journal.is_dir() else self.journal
        with boundary(OrlError, f"reading the journal {path}"), path.open("rb") as records:
            record = next(read_frames(records, start), None)
        if record is None or record.start != start:
            raise OrlError(f"{path}: no record at byte {start} any more")
        return decode_entry(record.content)


def _read(database: sqlite3.Connection, name: str, records: Any) -> Iterator[int]:
    """Index what one file has gained, one transaction for each batch."""
    fact = os.fstat(records.fileno())
    while True:
        database.execute("BEGIN IMMEDIATE")
        file, position = _file(database, name, fact)
        frames = list(islice(read_frames(records, position, end=fact.st_size), BATCH))
        rows = _Rows(database, file)
        rows.add(frames)
        if frames:
            database.execute(
                "UPDATE files SET position = ?, skipped = skipped + ? WHERE id = ?",
                (frames[-1].end, rows.skipped, file),
            )
        database.execute("COMMIT")
        if frames:
            yield rows.added
        if len(frames) < BATCH:
            return


def _file(database: sqlite3.Connection, name: str, fact: os.stat_result) -> tuple[int, int]:
    """Return the number of a file, and the byte up to which it is indexed. A file that was replaced begins anew."""
    found = database.execute("SELECT id, inode, position FROM files WHERE name = ?", (name,)).fetchone()
    if found and found[1] == fact.st_ino and found[2] <= fact.st_size:
        return found[0], found[2]
    if found:
        database.execute("DELETE FROM episodes WHERE file = ?", (found[0],))
        database.execute("DELETE FROM files WHERE id = ?", (found[0],))
    made = database.execute(
        "INSERT INTO files (name, inode, position, skipped) VALUES (?, ?, 0, 0)", (name, fact.st_ino)
    )
    return made.lastrowid or 0, 0


class _Rows:
    """The rows of a batch. Names are numbered."""

    def __init__(self, database: sqlite3.Connection, file: int) -> None:
        self._database, self._file = database, file
        self._names: dict[tuple[str, str], int] = {}
        self.added = self.skipped = 0

    def add(self, frames: list[Frame]) -> None:
        """Insert the records of `frames`; those of another schema are counted, those that were replaced left out."""
        rows: list[tuple[Any, ...]] = []
        for frame in frames:
            try:
                record = _decoder.decode(frame.content)
                if not record.replaced:
                    rows.append(self._row(frame.start, record))
            except (msgspec.DecodeError, ValueError, RecursionError):
                self.skipped += 1
        marks = ", ".join("?" * 12)
        self.added += len(rows)
        columns = "file, start, environment, task, ending, step, held_out, reward, verdict, turns, seconds, time"
        self._database.executemany(f"INSERT INTO episodes ({columns}) VALUES ({marks})", rows)  # noqa: S608

    def _row(self, start: int, record: _Record) -> tuple[Any, ...]:
        trajectory = record.trajectory
        task, failed = trajectory.job.task, trajectory.stop_reason == "error"
        return (
            self._file,
            start,
            self._number("environment", task.env_name),
            self._number("task", task.key),
            self._number("ending", trajectory.stop_detail or trajectory.stop_reason),
            record.step,
            trajectory.job.evaluation,
            None if failed else record.reward,
            2 if failed else int(record.success),
            len(trajectory.turns),
            trajectory.seconds,
            record.time,
        )

    def _number(self, kind: str, name: str) -> int:
        if (kind, name) not in self._names:
            self._database.execute("INSERT OR IGNORE INTO names (kind, name) VALUES (?, ?)", (kind, name))
            found = self._database.execute("SELECT id FROM names WHERE kind = ? AND name = ?", (kind, name))
            self._names[kind, name] = found.fetchone()[0]
        return self._names[kind, name]
