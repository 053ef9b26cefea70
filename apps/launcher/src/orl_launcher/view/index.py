"""The index of a journal for `orl view`: a row in memory for each episode, filtered, ordered, paged.

Each file is read from where the last whole record ended. Ids and texts stay on disk: an episode that is shown is read
again from its place.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.episodes.journal import Entry, Frame, decode_entry, journal_files, read_frames

from orl_launcher.reports import EpisodeRow, row_of

PAGE = 50  # episodes
GROUP = 32  # episodes of a group that are shown
SECONDS = 1.0  # that a page waits for what its journal has gained


class IndexRow(EpisodeRow, frozen=True, kw_only=True):
    """One episode and its place: it begins at the byte `start` of `file`."""

    environment: str
    file: Path
    start: int


ORDERS: dict[str, Callable[[IndexRow], Any]] = {
    "training first": lambda row: (row.evaluation, -row.number),  # episodes that train, and tokens in colour
    "newest": lambda row: -row.number,
    "oldest": lambda row: row.number,
    "highest reward": lambda row: (row.reward is None, -(row.reward or 0.0), row.number),
    "lowest reward": lambda row: (row.reward is None, row.reward or 0.0, row.number),
}
KINDS = {"training": False, "held-out": True}  # by `evaluation`
# By the names of the form: the field, how it is compared, and how the value is read.
FILTERS: dict[str, tuple[str, Callable[[Any, Any], bool], type[str] | type[float] | dict[str, Any]]] = {
    "environment": ("environment", operator.eq, str),
    "kind": ("evaluation", operator.eq, KINDS),
    "verdict": ("verdict", operator.eq, str),
    "ending": ("stop_reason", operator.eq, str),
    "task": ("task", operator.eq, str),
    "step_from": ("step", operator.ge, float),
    "step_to": ("step", operator.le, float),
    "reward_from": ("reward", operator.ge, float),
    "reward_to": ("reward", operator.le, float),
}


class EpisodePage(Struct, frozen=True, kw_only=True):
    """Page `page`, from 0, of the `total` episodes that match; `environments` and `endings` are all that there are."""

    rows: list[IndexRow]
    total: int
    page: int
    pages: int
    environments: list[str]
    endings: list[str]


class Index:
    """The index of one journal, a folder or a file. Threads share it."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.rows: list[IndexRow] = []
        self._read: dict[tuple[Path, int], int] = {}  # bytes of each file, by its name and inode
        self._lock = threading.Lock()

    def refresh(self, seconds: float = SECONDS) -> None:
        """Read what the journal has gained, for at most `seconds`. If a file was replaced, read all anew."""
        until = time.monotonic() + seconds
        with self._lock, boundary(OrlError, f"reading the journal {self.journal}"):
            sizes = self._sizes()
            if any(sizes.get(file, 0) < read for file, read in self._read.items()):
                self.rows, self._read = [], {}
            for (path, inode), size in sizes.items():
                with path.open("rb") as file:
                    for frame in read_frames(file, self._read.get((path, inode), 0), end=size):
                        self._add(frame, path)
                        self._read[path, inode] = frame.end
                        if time.monotonic() > until:
                            return

    def progress(self) -> float:
        """Return the share of the journal that is indexed."""
        return min(1.0, sum(self._read.values()) / (sum(self._sizes().values()) or 1))

    def entry(self, row: IndexRow) -> Entry:
        """Return an episode, read from the journal."""
        with boundary(OrlError, f"reading the journal {row.file}"), row.file.open("rb") as records:
            record = next(read_frames(records, row.start), None)
        if record is None or record.start != row.start:
            raise OrlError(f"{row.file}: no record at byte {row.start} any more")
        return decode_entry(record.content)

    def page(self, query: Mapping[str, str], page: int) -> EpisodePage:
        """Return page `page` of the episodes that match the form's `query`; the last one, if there are fewer."""
        order = _choice("order", query.get("order") or next(iter(ORDERS)), ORDERS)
        rows = matching = self.rows
        for name, (field, fits, form) in FILTERS.items():
            if text := query.get(name, "").strip():
                bound = _choice(name, text, form)
                matching = [
                    row for row in matching if (value := getattr(row, field)) is not None and fits(value, bound)
                ]
        pages = max(1, -(-len(matching) // PAGE))
        page = min(page, pages - 1)
        return EpisodePage(
            rows=sorted(matching, key=order)[page * PAGE :][:PAGE],
            total=len(matching),
            page=page,
            pages=pages,
            environments=sorted({row.environment for row in rows}),
            endings=sorted({row.stop_reason for row in rows}),
        )

    def group(self, row: IndexRow) -> list[IndexRow]:
        """Return the rollouts of the same task in the same step, the first GROUP."""
        same = (row.task, row.evaluation, row.step)
        return [one for one in self.rows if (one.task, one.evaluation, one.step) == same][:GROUP]

    def _sizes(self) -> dict[tuple[Path, int], int]:
        facts = {file: file.stat() for file in journal_files(self.journal)}
        return {(file, fact.st_ino): fact.st_size for file, fact in facts.items()}

    def _add(self, frame: Frame, file: Path) -> None:
        """Add the row of a record, unless it was replaced or is of another schema."""
        try:
            entry = decode_entry(frame.content, ids=False)
        except OrlError:
            return
        if not entry.replaced:
            row = structs.asdict(row_of(len(self.rows) + 1, entry))
            environment = entry.trajectory.job.task.env_name
            self.rows.append(IndexRow(**row, environment=environment, file=file, start=frame.start))


def _choice(name: str, text: str, form: type[str] | type[float] | dict[str, Any]) -> Any:
    """Return the value that a form's text stands for."""
    try:
        return form[text] if isinstance(form, dict) else form(text)
    except (KeyError, ValueError):
        advice = f"Choose one of: {', '.join(form)}" if isinstance(form, dict) else "Give a number"
        raise ConfigError(f"{name} is {text}. {advice}") from None
