"""The index of a journal: one row of SQLite for each episode, so that a million of them can be filtered.

The database is in a cache folder, never in that of the journal. It grows with the journal: each file is read from where
the last whole record ended. The records themselves are read from the journal again.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.episodes.frames import Frame, read_frames
from orl_rollout.episodes.journal import Entry, decode_entry, journal_files
from orl_rollout.logs import logger_of

from orl_launcher.reports import EpisodeRow, row_of

VERSION = 4  # of the tables
BATCH = 5000  # records of one transaction
PAGE = 50  # episodes
GROUP = 32  # episodes of a group, or attempts at a task, that are shown
SECONDS = 1.0  # that a page waits for what its journal has gained

FIELDS = EpisodeRow.__struct_fields__
COLUMNS = ", ".join((*FIELDS, "environment", "file", "start"))
TABLES = f"""
CREATE TABLE IF NOT EXISTS files (id INTEGER PRIMARY KEY, name TEXT UNIQUE, inode INTEGER, position INTEGER);
CREATE TABLE IF NOT EXISTS episodes (
    number INTEGER PRIMARY KEY, {COLUMNS.removeprefix("number, ")}
);
CREATE INDEX IF NOT EXISTS by_task ON episodes (task, step);
CREATE INDEX IF NOT EXISTS by_kind ON episodes (evaluation, number DESC);
CREATE INDEX IF NOT EXISTS by_environment ON episodes (environment);
CREATE INDEX IF NOT EXISTS by_stop_reason ON episodes (stop_reason);
"""
MAKE = f"PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {TABLES} COMMIT;"
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
ORDERS = {
    "training first": "evaluation, number DESC",  # episodes that train, and tokens in colour
    "newest": "number DESC",
    "oldest": "number",
    "highest reward": "reward DESC NULLS LAST, number",
    "lowest reward": "reward ASC NULLS LAST, number",
}
KINDS = {"training": 0, "held-out": 1}  # by `evaluation`
VERDICTS = {"success": "won", "no success": "lost", "error": "error"}
# By the names of the form: the condition, and how its value is read.
FILTERS: dict[str, tuple[str, type[str] | type[float] | dict[str, Any]]] = {
    "environment": ("environment = ?", str),
    "kind": ("evaluation = ?", KINDS),
    "verdict": ("verdict = ?", VERDICTS),
    "ending": ("stop_reason = ?", str),
    "task": ("task = ?", str),
    "step_from": ("step >= ?", float),
    "step_to": ("step <= ?", float),
    "reward_from": ("reward >= ?", float),
    "reward_to": ("reward <= ?", float),
}
logger = logger_of(__name__)


class BrokenIndexError(OrlError):
    """The index was broken, and is made anew: ask again."""


class EpisodePage(Struct, frozen=True, kw_only=True):
    """Page `page`, from 0, of the `total` episodes that match; `environments` and `endings` are all that there are."""

    rows: list[EpisodeRow]
    total: int
    page: int
    pages: int
    environments: list[str]
    endings: list[str]


class Index:
    """The index of one journal, a folder or a file. Each thread opens its own connection.

    Raises:
        OrlError: the cache cannot be written.
    """

    def __init__(self, journal: Path, cache: Path) -> None:
        self.journal = journal.resolve()
        digest = hashlib.blake2b(os.fsencode(self.journal), digest_size=12).hexdigest()
        self._path = cache / f"{digest}-{VERSION}.sqlite3"
        with (
            boundary(OrlError, f"making the index {self._path}"),
            suppress(BrokenIndexError),
            self._opened() as database,
        ):
            database.executescript(MAKE)

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        """Open the index; one that is broken or gone is made anew, and the block ends with BrokenIndexError."""
        try:
            with closing(self._connect()) as database:
                database.row_factory = sqlite3.Row
                yield database
        except sqlite3.DatabaseError as fault:
            code = getattr(fault, "sqlite_errorcode", 0) & 255  # none if Python itself raised it
            gone = code == sqlite3.SQLITE_CANTOPEN and not self._path.exists()
            if code not in BROKEN and not gone and "no such table" not in str(fault):  # another server may hold it
                raise
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(self._connect()) as database:
                database.executescript(MAKE)
            raise BrokenIndexError(f"{self._path} was broken, and was made anew. Load the page again") from fault

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, timeout=30)

    def refresh(self) -> Iterator[int]:
        """Read what the journal has gained. Yield the number of new records after each batch.

        Raises:
            OrlError: a file of the journal or the index cannot be read.
        """
        with boundary(OrlError, f"reading the journal {self.journal}"), self._opened() as database:
            database.execute("PRAGMA synchronous = NORMAL")
            for file in journal_files(self.journal):
                with boundary(OrlError, f"reading the journal {file}"), file.open("rb") as records:
                    yield from _read(database, file.name, records)

    def progress(self) -> float:
        """Return the share of the journal that is indexed."""
        total = sum(file.stat().st_size for file in journal_files(self.journal) if file.is_file())
        with self._opened() as database:
            done = database.execute("SELECT coalesce(sum(position), 0) FROM files").fetchone()[0]
        return min(1.0, done / total) if total else 1.0

    def entry(self, number: int) -> Entry | None:
        """Return the episode of this number, read from the journal; None if there is none.

        Raises:
            OrlError: the journal has changed, or cannot be read.
        """
        with self._opened() as database:
            row = database.execute(
                "SELECT name, start FROM episodes JOIN files ON files.id = file WHERE number = ?", (number,)
            ).fetchone()
        if row is None:
            return None
        name, start = row
        path = self.journal / name if self.journal.is_dir() else self.journal
        with boundary(OrlError, f"reading the journal {path}"), path.open("rb") as records:
            record = next(read_frames(records, start), None)
        if record is None or record.start != start:
            raise OrlError(f"{path}: no record at byte {start} any more")
        return decode_entry(record.content)

    def page(self, query: Mapping[str, str], page: int) -> EpisodePage:
        """Return page `page` of the episodes that match the form's `query`; the last one, if there are fewer.

        Raises:
            ConfigError: a bound is no number, or a choice does not exist.
        """
        condition, values = _condition(query)
        order = query.get("order") or next(iter(ORDERS))
        if order not in ORDERS:
            raise ConfigError(f"order is {order}. Choose one of: {', '.join(ORDERS)}")
        with self._opened() as database:
            total = database.execute(f"SELECT count(*) FROM episodes WHERE {condition}", values).fetchone()[0]  # noqa: S608
            environments, endings = (
                [each for (each,) in database.execute(f"SELECT DISTINCT {column} FROM episodes ORDER BY 1")]  # noqa: S608
                for column in ("environment", "stop_reason")
            )
        pages = max(1, -(-total // PAGE))
        page = min(page, pages - 1)
        rows = self._rows(f"{condition} ORDER BY {ORDERS[order]} LIMIT {PAGE} OFFSET {page * PAGE}", *values)
        return EpisodePage(rows=rows, total=total, page=page, pages=pages, environments=environments, endings=endings)

    def row(self, number: int) -> EpisodeRow | None:
        """Return the row of this number; None if there is none."""
        return next(iter(self._rows("number = ?", number)), None)

    def group(self, row: EpisodeRow, most: int = GROUP) -> list[EpisodeRow]:
        """Return the rollouts of the same task in the same step, the first `most`."""
        same = "task = ? AND step IS ? AND evaluation = ?"
        return self._rows(f"{same} ORDER BY number LIMIT {most}", row.task, row.step, row.evaluation)

    def attempts(self, row: EpisodeRow) -> list[EpisodeRow]:
        """Return the rollouts of the same task in all steps: those of the first and the last half of GROUP."""
        same, most = "task = ? AND evaluation = ?", GROUP // 2
        first = self._rows(f"{same} ORDER BY step, number LIMIT {most}", row.task, row.evaluation)
        last = self._rows(f"{same} ORDER BY step DESC, number DESC LIMIT {most}", row.task, row.evaluation)
        return [*{one.number: one for one in (*first, *reversed(last))}.values()]

    def last_number(self) -> int:
        """Return the number of the last episode; 0 if there is none."""
        return max((row.number for row in self._rows("1 ORDER BY number DESC LIMIT 1")), default=0)

    def _rows(self, condition: str, *values: object) -> list[EpisodeRow]:
        question = f"SELECT {', '.join(FIELDS)} FROM episodes WHERE {condition}"  # noqa: S608
        with self._opened() as database:
            return [msgspec.convert(dict(row), EpisodeRow, strict=False) for row in database.execute(question, values)]


def _condition(query: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Return the condition on episodes that a form asks for, and its values. An empty text chooses all."""
    conditions, values = ["1"], list[Any]()
    for name, (condition, form) in FILTERS.items():
        if text := query.get(name, "").strip():
            conditions.append(condition)
            try:
                values.append(form[text] if isinstance(form, dict) else form(text))
            except (KeyError, ValueError):
                advice = f"Choose one of: {', '.join(form)}" if isinstance(form, dict) else "Give a number"
                raise ConfigError(f"{name} is {text}. {advice}") from None
    return " AND ".join(conditions), values


def _read(database: sqlite3.Connection, name: str, records: Any) -> Iterator[int]:
    """Index what one file has gained, one transaction for each batch."""
    fact = os.fstat(records.fileno())
    while True:
        database.execute("BEGIN IMMEDIATE")
        file, position = _file(database, name, fact)
        frames = list(islice(read_frames(records, position, end=fact.st_size), BATCH))
        rows = [row for frame in frames if (row := _row_in(frame, file))]
        marks = ", ".join("?" * len(COLUMNS.split(", ")))
        database.executemany(f"INSERT INTO episodes ({COLUMNS}) VALUES ({marks})", rows)  # noqa: S608
        if frames:
            database.execute("UPDATE files SET position = ? WHERE id = ?", (frames[-1].end, file))
        database.execute("COMMIT")
        if frames:
            yield len(rows)
        if len(frames) < BATCH:
            return


def _file(database: sqlite3.Connection, name: str, fact: os.stat_result) -> tuple[int, int]:
    """Return the number of a file, and the byte up to which it is indexed. A file that was replaced begins anew."""
    row = database.execute("SELECT id, inode, position FROM files WHERE name = ?", (name,)).fetchone()
    if row and row["inode"] == fact.st_ino and row["position"] <= fact.st_size:
        return row["id"], row["position"]
    if row:
        database.execute("DELETE FROM episodes WHERE file = ?", (row["id"],))
        database.execute("DELETE FROM files WHERE id = ?", (row["id"],))
    cursor = database.execute("INSERT INTO files (name, inode, position) VALUES (?, ?, 0)", (name, fact.st_ino))
    return cursor.lastrowid or 0, 0


def _row_in(frame: Frame, file: int) -> tuple[Any, ...] | None:
    """Return the values of COLUMNS of a record; None if it was replaced or is of another schema."""
    try:
        entry = decode_entry(frame.content, ids=False)
    except OrlError:
        return None
    row = structs.astuple(row_of(0, entry))
    return None if entry.replaced else (None, *row[1:], entry.trajectory.job.task.env_name, file, frame.start)


class Indexes:
    """The indexes of the journals that pages show, in the folder `cache`."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._indexes: dict[Path, Index] = {}
        self._lock = threading.Lock()

    def of(self, journal: Path) -> Index:
        """Return the index of a journal, read for at most SECONDS. A large one may not hold everything yet.

        Raises:
            OrlError: the cache cannot be written.
        """
        with self._lock:
            index = self._indexes.get(journal) or self._indexes.setdefault(journal, Index(journal, self._cache))
        until = time.monotonic() + SECONDS
        try:
            next((None for _ in index.refresh() if time.monotonic() >= until), None)
        except BrokenIndexError:
            raise
        except OrlError as fault:
            logger.warning("%s", fault)
        return index
